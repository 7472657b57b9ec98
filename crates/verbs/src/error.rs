//! Why a call failed: what is missing, or which call answered which error.

/// Why a call of the library failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no library, or not the one that is needed.
    #[error(
        "libibverbs cannot be loaded: {0}; Debian has it in the package libibverbs1, and drivers in ibverbs-providers"
    )]
    Library(String),
    /// No such device.
    #[error("there is no RDMA device {name}; there are: {}", if there.is_empty() { "none".into() } else { there.join(", ") })]
    NoDevice {
        /// The name asked for.
        name: String,
        /// Names of those that are there.
        there: Vec<String>,
    },
    /// A Q_Key of the privileged ones.
    #[error(
        "Q_Key {0:#010x} has its top bit set: only privileged processes may use such keys (the kernel answers EPERM); \
         keys from 0 to 0x7fffffff are free"
    )]
    QKey(u32),
    /// A request of no piece of memory, or of more than are possible.
    #[error("requests of {asked} pieces of memory: there can be from 1 to {most} here")]
    Pieces {
        /// How many were asked for.
        asked: u32,
        /// Most of the device, if the queue pair is to be made; else of the queue pair.
        most: u32,
    },
    /// A call failed.
    #[error("{call}: {error}")]
    Call {
        /// The call.
        call: &'static str,
        /// What it answered.
        error: std::io::Error,
    },
}

impl Error {
    /// Returns the error of a `call` whose parts do not fit together.
    pub(crate) fn invalid(call: &'static str) -> Self {
        Self::Call { call, error: std::io::Error::from_raw_os_error(libc::EINVAL) }
    }
}
