//! The hook file for libvirt: a line of shell that runs `tidegate libvirt hook`.

use std::path::Path;

/// The file's name in a `qemu.d` folder.
pub const NAME: &str = "tidegate";
/// The beginning of the second line of our hook; a file without it is another program's.
const MARK: &str = "# Made by `tidegate libvirt install-hook`";

/// The hook's settings beside libvirt's arguments.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// The program, absolute.
    pub program: &'a Path,
    /// The agent's API socket, absolute.
    pub api: &'a Path,
    /// A refusal is logged, and the domain starts.
    pub advisory: bool,
}

/// Returns the file's text.
///
/// # Errors
/// A path that is not UTF-8, or not absolute: libvirt runs hooks in a folder of its own.
pub fn text(settings: Settings<'_>) -> Result<String, String> {
    let word = |path: &Path| match path.to_str() {
        Some(text) if path.is_absolute() => Ok(quoted(text)),
        Some(text) => Err(format!("{text} is not an absolute path")),
        None => Err(format!("{} is not UTF-8", path.display())),
    };
    let advisory = if settings.advisory { " --advisory" } else { "" };
    let (program, api) = (word(settings.program)?, word(settings.api)?);
    Ok(format!(
        "#!/bin/sh\n{MARK}, which also changes it; `tidegate libvirt remove-hook` removes it.\n\
         # A program that was removed keeps no VM from starting.\n\
         [ -x {program} ] || {{ logger -p daemon.warning -t tidegate-hook {program} is gone; exit 0; }}\n\
         exec {program} --api {api} libvirt hook{advisory} -- \"$@\"\n"
    ))
}

/// Returns whether a file's text is ours, of any release and settings.
pub fn is_ours(text: &str) -> bool {
    text.lines().nth(1).is_some_and(|line| line.starts_with(MARK))
}

/// Quotes a text as one word of the shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    if text.chars().all(plain) { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings<'a>(program: &'a str, advisory: bool) -> Settings<'a> {
        Settings { program: Path::new(program), api: Path::new("/run/tidegate/api.sock"), advisory }
    }

    #[test]
    fn own_hooks_are_recognised() {
        let plain = text(settings("/usr/bin/tidegate", false)).expect("a script");
        assert_eq!(
            plain.lines().last(),
            Some("exec /usr/bin/tidegate --api /run/tidegate/api.sock libvirt hook -- \"$@\"")
        );
        let odd = text(settings("/opt/it's here/tidegate", true)).expect("a script");
        assert!(
            odd.contains(r"exec '/opt/it'\''s here/tidegate' --api") && odd.contains("hook --advisory --"),
            "{odd}"
        );
        assert!(is_ours(&plain) && is_ours(&odd));
        assert!(!is_ours("") && !is_ours("#!/bin/sh\n# mine\n") && !is_ours(MARK));
        assert!(text(settings("target/tidegate", false)).is_err());
    }
}
