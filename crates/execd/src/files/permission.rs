//! Owner, group and mode as the API writes them.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, fchown};
use std::path::Path;

use protocol::execd::files::Permission;

use crate::error::{ApiError, Result};
use crate::identity::Accounts;

/// A checked [`Permission`]: names looked up, digits read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Owner to set.
    pub uid: Option<u32>,
    /// Group to set.
    pub gid: Option<u32>,
    /// Permission bits to set.
    pub mode: Option<u32>,
}

impl Applied {
    /// Checks a permission for `path`.
    ///
    /// # Errors
    /// 400 for an unknown name, or a mode that is not three octal digits.
    pub fn check(path: &str, permission: &Permission, accounts: &Accounts) -> Result<Self> {
        let named = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
        let lookup = |what: &str, name: Option<String>, id: &dyn Fn(&str) -> Option<u32>| {
            let Some(name) = name else { return Ok(None) };
            let unknown = || ApiError::body(format!("{path}: {what} {name:?} does not exist in the sandbox"));
            id(&name).map(Some).ok_or_else(unknown)
        };
        Ok(Self {
            uid: lookup("owner", named(&permission.owner), &|name| accounts.uid_of(name))?,
            gid: lookup("group", named(&permission.group), &|name| accounts.gid_of(name))?,
            mode: mode(path, permission.mode)?,
        })
    }

    /// Sets what is given. The owner first: changing it may clear bits of the mode.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn apply(&self, path: &Path) -> io::Result<()> {
        if self.uid.is_some() || self.gid.is_some() {
            chown(path, self.uid, self.gid)?;
        }
        match self.mode {
            Some(mode) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
            None => Ok(()),
        }
    }

    /// The same on an open file.
    ///
    /// # Errors
    /// The system's refusal.
    pub fn apply_to(&self, file: &fs::File) -> io::Result<()> {
        if self.uid.is_some() || self.gid.is_some() {
            fchown(file, self.uid, self.gid)?;
        }
        match self.mode {
            Some(mode) => file.set_permissions(fs::Permissions::from_mode(mode)),
            None => Ok(()),
        }
    }
}

/// Reads decimal digits as octal ones: 644 means 0644; 0 and absent mean "leave it".
fn mode(path: &str, digits: Option<i64>) -> Result<Option<u32>> {
    let Some(digits) = digits.filter(|digits| *digits != 0) else {
        return Ok(None);
    };
    let read = u32::from_str_radix(&digits.to_string(), 8).ok().filter(|mode| *mode <= 0o777);
    let refused =
        || ApiError::body(format!("{path}: mode {digits} is not three octal digits; write 0644 as the number 644"));
    read.map(Some).ok_or_else(refused)
}

/// Permission bits as a decimal number of octal digits: 0o755 reads 755.
pub fn decimal_mode(mode: u32) -> u32 {
    let mode = mode & 0o777;
    (mode >> 6) * 100 + (mode >> 3 & 7) * 10 + (mode & 7)
}

#[cfg(test)]
mod tests {
    use super::{decimal_mode, mode};

    #[test]
    fn os_059_mode_is_octal_digits_in_a_decimal_number() {
        assert_eq!(mode("f", Some(755)).expect("a mode"), Some(0o755));
        assert_eq!(mode("f", Some(0)).expect("no mode"), None);
        // 0o755 sent as its value, four digits, digits beyond 7, a sign
        for digits in [493, 1777, 788, -644] {
            assert!(mode("f", Some(digits)).is_err(), "{digits}");
        }
        assert_eq!(decimal_mode(0o100640), 640);
    }
}
