//! Files and directories.

use serde::{Deserialize, Serialize};

/// What a path is, not following a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Absolute path.
    pub path: String,
    /// `file`, `directory`, `symlink` or `other`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Bytes.
    pub size: i64,
    /// RFC 3339.
    pub modified_at: String,
    /// RFC 3339; the time of the last change of the inode, as published.
    pub created_at: String,
    /// Name of the owner, or its number where it has none.
    pub owner: String,
    /// Name of the group, or its number where it has none.
    pub group: String,
    /// Permission bits, octal digits read as a decimal number: 755.
    pub mode: u32,
}

/// Owner, group and mode to set; what is absent, empty or 0 stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permission {
    /// Name of the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Name of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Octal digits read as a decimal number: 755.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<i64>,
}

/// The `metadata` part of an upload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMetadata {
    /// Where the content goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Owner, group and mode of the file.
    #[serde(flatten)]
    pub permission: Permission,
}

/// One item of `POST /files/mv`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenameItem {
    /// What is moved.
    pub src: String,
    /// Its new path, which must not exist.
    pub dest: String,
}

/// One item of `POST /files/replace`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplaceItem {
    /// Text to look for; not empty.
    pub old: String,
    /// Text to put in its place.
    pub new: String,
}

/// One value of the answer of `POST /files/replace?verbose=true`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplaceResult {
    /// How often the text was found.
    #[serde(rename = "replacedCount")]
    pub replaced_count: u64,
}
