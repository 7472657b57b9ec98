//! User and group names to numbers, through the system's name service.

use std::ffi::CString;
use std::io;

/// Returns the number of a user, given by name or number.
pub fn user(name: &str) -> io::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    // SAFETY: passwd is plain integers and pointers; all zero is a valid value.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    // SAFETY: entry, buffer and result are live for the call; the length is the buffer's.
    let found = look_up(name, "user", |c, buffer, found| unsafe {
        let mut result = std::ptr::null_mut();
        let code = libc::getpwnam_r(c.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut result);
        *found = !result.is_null();
        code
    });
    found.map(|()| entry.pw_uid)
}

/// Returns the number of a group, given by name or number.
pub fn group(name: &str) -> io::Result<u32> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    // SAFETY: group is plain integers and pointers; all zero is a valid value.
    let mut entry: libc::group = unsafe { std::mem::zeroed() };
    // SAFETY: entry, buffer and result are live for the call; the length is the buffer's.
    let found = look_up(name, "group", |c, buffer, found| unsafe {
        let mut result = std::ptr::null_mut();
        let code = libc::getgrnam_r(c.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut result);
        *found = !result.is_null();
        code
    });
    found.map(|()| entry.gr_gid)
}

fn look_up(
    name: &str,
    what: &str,
    mut ask: impl FnMut(&CString, &mut [libc::c_char], &mut bool) -> libc::c_int,
) -> io::Result<()> {
    let c = CString::new(name).map_err(|_| io::Error::other(format!("{what} name with a NUL byte")))?;
    let mut buffer = vec![0; 1 << 10];
    loop {
        let mut found = false;
        match ask(&c, &mut buffer, &mut found) {
            libc::ERANGE if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 2, 0),
            0 if found => return Ok(()),
            0 => return Err(io::Error::other(format!("there is no {what} {name:?} on this host"))),
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        assert_eq!(user("root").unwrap(), 0);
        assert_eq!(group("root").unwrap(), 0);
        assert_eq!(user("1234").unwrap(), 1234);
        assert!(group("no-such-group").unwrap_err().to_string().contains("no group \"no-such-group\""));
        assert!(user("no-such-user").unwrap_err().to_string().contains("no user"));
    }
}
