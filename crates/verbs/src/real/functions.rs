//! The library's functions, found by name and version at run time.

use super::layout::{
    AddressAttributes, AsyncEvent, Channel, CompletionQueue, Context, DeviceAttributes, GidEntry,
    InitAttributes, MemoryRegion, Opaque, PairAttributes, PortAttributes, QueuePair,
};
use crate::Error;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The interface of all releases since 1.1 (2007), on Debian the package libibverbs1.
const FILE: &CStr = c"libibverbs.so.1";

/// Makes the table, and the search for each function by its name, the version of its interface, and its type.
macro_rules! functions {
    ($($field:ident: $name:literal, $version:literal, fn($($argument:ty),*) $(-> $answer:ty)?;)+) => {
        /// Those that we call. The library is never closed: drivers that it loads would not survive that.
        #[derive(Debug)]
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)+
        }

        impl Functions {
            fn of(library: *mut c_void) -> Result<Self, Error> {
                Ok(Self {
                    // SAFETY: each has this type in infiniband/verbs.h, whose structures the tests of `layout` compare with ours.
                    $($field: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $answer)?>(
                            symbol(library, $name, $version)?
                        )
                    },)+
                })
            }
        }
    };
}

// Version 1.0 of the names that have 1.1 here takes other structures.
functions! {
    get_device_list: c"ibv_get_device_list", c"IBVERBS_1.1", fn(*mut c_int) -> *mut *mut Opaque;
    free_device_list: c"ibv_free_device_list", c"IBVERBS_1.1", fn(*mut *mut Opaque);
    get_device_name: c"ibv_get_device_name", c"IBVERBS_1.1", fn(*mut Opaque) -> *const c_char;
    open_device: c"ibv_open_device", c"IBVERBS_1.1", fn(*mut Opaque) -> *mut Context;
    close_device: c"ibv_close_device", c"IBVERBS_1.1", fn(*mut Context) -> c_int;
    query_device: c"ibv_query_device", c"IBVERBS_1.1", fn(*mut Context, *mut DeviceAttributes) -> c_int;
    query_port: c"ibv_query_port", c"IBVERBS_1.1", fn(*mut Context, u8, *mut PortAttributes) -> c_int;
    query_gid: c"_ibv_query_gid_ex", c"IBVERBS_1.11", fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    get_async_event: c"ibv_get_async_event", c"IBVERBS_1.1", fn(*mut Context, *mut AsyncEvent) -> c_int;
    ack_async_event: c"ibv_ack_async_event", c"IBVERBS_1.1", fn(*mut AsyncEvent);
    alloc_pd: c"ibv_alloc_pd", c"IBVERBS_1.1", fn(*mut Context) -> *mut Opaque;
    dealloc_pd: c"ibv_dealloc_pd", c"IBVERBS_1.1", fn(*mut Opaque) -> c_int;
    reg_mr: c"ibv_reg_mr", c"IBVERBS_1.1", fn(*mut Opaque, *mut c_void, usize, c_int) -> *mut MemoryRegion;
    dereg_mr: c"ibv_dereg_mr", c"IBVERBS_1.1", fn(*mut MemoryRegion) -> c_int;
    create_comp_channel: c"ibv_create_comp_channel", c"IBVERBS_1.0", fn(*mut Context) -> *mut Channel;
    destroy_comp_channel: c"ibv_destroy_comp_channel", c"IBVERBS_1.0", fn(*mut Channel) -> c_int;
    create_cq: c"ibv_create_cq", c"IBVERBS_1.1", fn(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut CompletionQueue;
    destroy_cq: c"ibv_destroy_cq", c"IBVERBS_1.1", fn(*mut CompletionQueue) -> c_int;
    get_cq_event: c"ibv_get_cq_event", c"IBVERBS_1.1", fn(*mut Channel, *mut *mut CompletionQueue, *mut *mut c_void) -> c_int;
    ack_cq_events: c"ibv_ack_cq_events", c"IBVERBS_1.1", fn(*mut CompletionQueue, c_uint);
    create_qp: c"ibv_create_qp", c"IBVERBS_1.1", fn(*mut Opaque, *mut InitAttributes) -> *mut QueuePair;
    modify_qp: c"ibv_modify_qp", c"IBVERBS_1.1", fn(*mut QueuePair, *mut PairAttributes, c_int) -> c_int;
    destroy_qp: c"ibv_destroy_qp", c"IBVERBS_1.1", fn(*mut QueuePair) -> c_int;
    create_ah: c"ibv_create_ah", c"IBVERBS_1.1", fn(*mut Opaque, *mut AddressAttributes) -> *mut Opaque;
    destroy_ah: c"ibv_destroy_ah", c"IBVERBS_1.1", fn(*mut Opaque) -> c_int;
}

impl Functions {
    /// Loads the library and finds all of them.
    ///
    /// # Errors
    /// No such library, or it lacks one: it is older than rdma-core 32 (2020), which brought the kinds of GIDs.
    pub(super) fn load() -> Result<Self, Error> {
        Self::load_from(FILE)
    }

    fn load_from(file: &CStr) -> Result<Self, Error> {
        // SAFETY: a library of the system's folders; its start-up code is meant to run.
        let library = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() { Err(Error::Library(last_words())) } else { Self::of(library) }
    }
}

fn symbol(library: *mut c_void, name: &CStr, version: &CStr) -> Result<*mut c_void, Error> {
    // SAFETY: the library is open, and both strings end with a zero.
    let found = unsafe { libc::dlvsym(library, name.as_ptr(), version.as_ptr()) };
    if found.is_null() { Err(Error::Library(last_words())) } else { Ok(found) }
}

/// Returns why the last call of the loader failed in this thread.
fn last_words() -> String {
    // SAFETY: it takes nothing.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return "the loader does not say why".into();
    }
    // SAFETY: a string that ends with a zero, valid until this thread's next call of the loader.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tidegate_testkit::skip::need;

    #[test]
    fn a_library_that_is_not_there_is_named_with_its_package() {
        let error = Functions::load_from(c"libibverbs.so.0").unwrap_err().to_string();
        assert!(error.contains("libibverbs.so.0") && error.contains("package libibverbs1"), "{error}");
    }

    #[test]
    fn another_library_is_refused_with_the_function_it_lacks() {
        let error = Functions::load_from(c"libc.so.6").unwrap_err().to_string();
        assert!(error.contains("ibv_get_device_list"), "{error}");
    }

    #[test]
    fn the_installed_library_has_all_functions() {
        let is_there = Path::new("/usr/lib/x86_64-linux-gnu/libibverbs.so.1").exists();
        if need("no libibverbs.so.1: run scripts/setup test", is_there) {
            Functions::load().unwrap();
        }
    }
}
