//! A bare root file system becomes an image of one layer.

use serde_json::json;

use super::Found;
use super::scan::Whole;
use super::source::Blob;
use crate::Platform;
use crate::digest::Digest;
use crate::manifest::Configuration;

/// Where programs are looked for, as in Debian's and Docker's images.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Describes the archive. The same archive always becomes the same image, so there is no date in it.
pub(super) fn describe(whole: &Whole) -> Found {
    let platform = Platform::current();
    let config_bytes = serde_json::to_vec(&json!({
        "os": platform.os,
        "architecture": platform.architecture,
        "config": { "Env": [PATH], "Cmd": ["/bin/sh"], "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", whole.diff_id)] },
    }))
    .expect("a literal has a JSON form");
    let configuration =
        Configuration::parse(&config_bytes, "generated configuration").expect("it was written to be read");
    Found {
        config_digest: Digest::of(&config_bytes),
        configuration,
        config_bytes,
        manifest_bytes: None,
        names: Vec::new(),
        layers: vec![(whole.diff_id.clone(), Blob { name: String::new(), digest: None })],
    }
}
