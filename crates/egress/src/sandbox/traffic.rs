//! What becomes of a sandbox's traffic: it leaves, it is recorded as well, or it is answered from a recording and has no way out.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::{Record, RecordType};
use tokio::net::TcpStream;

use super::Sandbox;
use crate::dial;
use crate::intercept::taping::Recorder;
use crate::name::Name;
use crate::recording::Book;
use crate::resolve::ResolveError;
use crate::upstream::UpstreamProxy;

/// What becomes of a sandbox's traffic. It is one of these for as long as the sandbox is attached.
#[derive(Debug)]
pub enum Traffic {
    /// It leaves.
    Live,
    /// It leaves, and what comes back is recorded.
    Recorded(Recorder),
    /// None leaves: it is answered from a recording. Nothing is resolved or dialled.
    Replayed(Arc<Book>),
}

impl Sandbox {
    /// What records its traffic, if that is done.
    pub fn recorder(&self) -> Option<&Recorder> {
        match &self.traffic {
            Traffic::Recorded(recorder) => Some(recorder),
            Traffic::Live | Traffic::Replayed(_) => None,
        }
    }

    /// The recording that answers it, if one does.
    pub fn book(&self) -> Option<&Arc<Book>> {
        match &self.traffic {
            Traffic::Replayed(book) => Some(book),
            Traffic::Live | Traffic::Recorded(_) => None,
        }
    }

    /// The way to resolvers and hosts, which only traffic that leaves has.
    pub fn way_out(&self) -> Option<WayOut<'_>> {
        match &self.traffic {
            Traffic::Live | Traffic::Recorded(_) => Some(WayOut { sandbox: self }),
            Traffic::Replayed(_) => None,
        }
    }
}

/// The way to resolvers and hosts: all that asks or dials for a sandbox goes by it, so that a sandbox without it, which is
/// answered from a recording, cannot.
#[derive(Clone, Copy, Debug)]
pub struct WayOut<'a> {
    sandbox: &'a Sandbox,
}

impl WayOut<'_> {
    /// The addresses of a name, remembered for as long as they hold.
    ///
    /// # Errors
    /// When there are none, or nobody says.
    pub async fn addresses(&self, name: &Name) -> Result<Arc<[IpAddr]>, ResolveError> {
        self.sandbox.cache.addresses(&self.sandbox.shared.resolver, name).await
    }

    /// Records of a name other than its addresses.
    ///
    /// # Errors
    /// When there are none, or nobody says.
    pub async fn records(&self, name: &Name, kind: RecordType) -> Result<Vec<Record>, ResolveError> {
        self.sandbox.shared.resolver.records(name, kind).await
    }

    /// Connects to the first of these addresses that answers.
    ///
    /// # Errors
    /// What the last attempt said.
    pub async fn connect(&self, addresses: &[IpAddr], port: u16) -> io::Result<TcpStream> {
        dial::connect(addresses, port).await
    }

    /// Connects to a host by a proxy.
    ///
    /// # Errors
    /// What the proxy says, or why it cannot be asked.
    pub async fn connect_by(&self, proxy: &UpstreamProxy, host: &str, port: u16) -> io::Result<TcpStream> {
        let shared = &self.sandbox.shared;
        proxy.connect((&shared.resolver, &shared.proxy_addresses), host, port).await
    }
}
