//! What a client says first, and whether it fits what its connection was let through for.

use std::io;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::Flow;
use crate::inspect::{self, HEAD_BYTES, Head};
use crate::sandbox::Sandbox;
use crate::verdicts::Reason;

/// How long bytes are held back that may be the beginning of a request, or all that a client of something else says.
const UNSURE_DEADLINE: Duration = Duration::from_millis(300);
/// How long a first message may take once it began. Before it begins nothing is waited for: many servers speak first.
const HEAD_DEADLINE: Duration = Duration::from_secs(10);

/// What a client said first, as far as it must be held back to be understood.
pub struct FirstBytes {
    /// All of it.
    pub bytes: Vec<u8>,
    /// What it is.
    pub seen: Result<Head, inspect::BadHead>,
}

/// Reads until it is known what a client speaks, or that it is nothing known.
///
/// # Errors
/// When the connection breaks off.
pub async fn first_bytes(client: &TcpStream) -> io::Result<FirstBytes> {
    client.readable().await?;
    let began = Instant::now();
    let mut bytes = Vec::with_capacity(2048);
    let mut is_sure = true;
    loop {
        match client.try_read_buf(&mut limited(&mut bytes)) {
            // It says no more: what it said is passed on, and so is its end.
            Ok(0) => return Ok(FirstBytes { bytes, seen: Ok(Head::Opaque) }),
            Ok(_) => match inspect::look(&bytes) {
                Ok(Head::Unfinished) => is_sure = true,
                Ok(Head::Unsure) => is_sure = false,
                seen => return Ok(FirstBytes { bytes, seen }),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let deadline = began + if is_sure { HEAD_DEADLINE } else { UNSURE_DEADLINE };
                if timeout_at(deadline, client.readable()).await.is_err() {
                    let seen = if is_sure { Err(inspect::BadHead::TooLate) } else { Ok(Head::Opaque) };
                    return Ok(FirstBytes { bytes, seen });
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Room for the rest of a head and no more.
fn limited(bytes: &mut Vec<u8>) -> bytes::buf::Limit<&mut Vec<u8>> {
    let room = HEAD_BYTES - bytes.len();
    bytes::BufMut::limit(bytes, room)
}

/// Holds what a client said against what it was let through for.
pub fn judge_head(sandbox: &Sandbox, flow: &Flow, head: &FirstBytes) -> Result<(), Reason> {
    let presented = match &head.seen {
        Ok(Head::Tls(Some(name)) | Head::Http(Some(name))) => name,
        Ok(_) => return Ok(()),
        // A rule that names the address means whatever is spoken there.
        Err(_) if flow.name.is_none() && !sandbox.policy().cares_what_is_presented(&flow.allowed_by) => return Ok(()),
        Err(error) => return Err(Reason::BadHead { message: error.to_string() }),
    };
    // Written down before the policy is read: one that changes after that finds it. A flow has one head.
    let _ = flow.presented.set(presented.clone());
    let policy = sandbox.policy();
    match &flow.name {
        Some(name) if name == presented => Ok(()),
        Some(_) => Err(Reason::OtherHost { presented: presented.to_string() }),
        None => match policy.presented(&flow.allowed_by, presented, flow.dialled.port) {
            Some(verdict) => Err(Reason::Policy { because: verdict.because }),
            None => Ok(()),
        },
    }
}
