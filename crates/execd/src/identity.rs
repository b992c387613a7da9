//! Users and groups, read from the sandbox's own `/etc/passwd` and `/etc/group`.

use std::fs;
use std::path::Path;

use crate::spawn::Identity;

/// Bytes of either file that are read; what lies beyond is as if it were not there.
const MAX_FILE_BYTES: usize = 4 * 1024 * 1024;

/// One line of `/etc/passwd`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Home directory.
    pub home: String,
}

/// Both files as they were when this was made.
pub struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    /// Reads the files; a missing one has no entries.
    pub fn load() -> Self {
        let read = |path: &str| {
            let mut bytes = fs::read(Path::new(path)).unwrap_or_default();
            bytes.truncate(MAX_FILE_BYTES);
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Self { passwd: read("/etc/passwd"), group: read("/etc/group") }
    }

    fn users(&self) -> impl Iterator<Item = User> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_owned();
            let uid = fields.nth(1)?.parse().ok()?;
            let gid = fields.next()?.parse().ok()?;
            let home = fields.nth(1)?.to_owned();
            Some(User { name, uid, gid, home })
        })
    }

    fn groups(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            let gid = fields.nth(1)?.parse().ok()?;
            Some((name, gid, fields.next().unwrap_or("")))
        })
    }

    /// The user with this id.
    pub fn user(&self, uid: u32) -> Option<User> {
        self.users().find(|user| user.uid == uid)
    }

    /// The id of this user name.
    pub fn uid_of(&self, name: &str) -> Option<u32> {
        self.users().find(|user| user.name == name).map(|user| user.uid)
    }

    /// The id of this group name.
    pub fn gid_of(&self, name: &str) -> Option<u32> {
        self.groups().find(|group| group.0 == name).map(|group| group.1)
    }

    /// The user's name, or its number where it has none.
    pub fn user_name(&self, uid: u32) -> String {
        self.user(uid).map_or_else(|| uid.to_string(), |user| user.name)
    }

    /// The group's name, or its number where it has none.
    pub fn group_name(&self, gid: u32) -> String {
        self.groups().find(|group| group.1 == gid).map_or_else(|| gid.to_string(), |group| group.0.to_owned())
    }

    /// Completes an identity: without a `gid` the user's primary group, or the user's number where the
    /// user is unknown; supplementary groups are those that list the user.
    pub fn identity(&self, uid: u32, gid: Option<u32>) -> Identity {
        let user = self.user(uid);
        let gid = gid.or(user.as_ref().map(|user| user.gid)).unwrap_or(uid);
        let mut groups = vec![gid];
        if let Some(user) = user {
            let lists_user = |members: &str| members.split(',').any(|member| member.trim() == user.name);
            groups.extend(self.groups().filter(|group| group.1 != gid && lists_user(group.2)).map(|group| group.1));
        }
        Identity { uid, gid, groups }
    }
}

/// Whether execd already is `identity`, so that no privilege is needed to run as it.
pub fn is_own(identity: &Identity) -> bool {
    rustix::process::geteuid().as_raw() == identity.uid && rustix::process::getegid().as_raw() == identity.gid
}

#[cfg(test)]
mod tests {
    use super::Accounts;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0:root:/root:/bin/sh\nada:x:1000:1001::/home/ada:/bin/sh\nbroken\n".into(),
            group: "root:x:0:\nada:x:1001:\nstaff:x:50:bob,ada\n".into(),
        }
    }

    #[test]
    fn supplementary_groups_follow_the_user() {
        assert_eq!(accounts().identity(1000, None).groups, [1001, 50]);
    }

    #[test]
    fn an_unknown_user_gets_its_own_number_as_group() {
        let identity = accounts().identity(4242, None);
        assert_eq!((identity.gid, identity.groups.as_slice()), (4242, [4242].as_slice()));
    }
}
