//! HTTP/1.1: connections, the token, and the way from a path to the code that answers it.

mod answer;
pub mod client;
mod listen;
mod proxy;
mod query;
mod route;
mod tunnel;
pub mod websocket;

pub use answer::{Answer, Body, ByteSender, empty, json, not_found, refuse, stream, text};
pub use listen::{Duplex, Listener, connection, serve};
pub use query::{Query, read_json, read_optional_json};
