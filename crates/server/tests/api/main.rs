//! The API over TCP, with the fake runtime behind it. One program: each would compile the whole server again.

mod access;
mod common;
mod endpoints;
mod hooks;
mod http;
mod images;
mod lifecycle;
mod links;
mod network;
mod pools;
mod proxy;
mod recovery;
mod snapshots;
mod tunnel;
mod vault;
mod volumes;
