use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::{PACKET_BYTES, PACKET_FDS, pair, receive_bytes, send, send_bytes};

#[test]
fn packets_arrive_as_they_were_sent_with_their_descriptors() {
    let (ours, theirs) = pair().expect("a pair");
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    send(ours.as_fd(), &["a", "b"], &[writer.as_fd()], SendFlags::empty()).expect("sent");
    send(ours.as_fd(), &"c", &[], SendFlags::empty()).expect("sent");
    drop((ours, writer));
    let mut buffer = vec![b'x'; 100];
    let (bytes, fds) = receive_bytes(theirs.as_fd(), &mut buffer, RecvFlags::empty()).expect("a read").expect("one");
    assert_eq!((bytes, fds.len()), (&br#"["a","b"]"#[..], 1));
    rustix::io::write(&fds[0], b"!").expect("the same pipe");
    assert_eq!(rustix::io::read(&reader, &mut [0; 2]).expect("a read"), 1);
    let (bytes, fds) = receive_bytes(theirs.as_fd(), &mut buffer, RecvFlags::empty()).expect("a read").expect("one");
    assert_eq!((bytes, fds.len()), (&br#""c""#[..], 0));
    assert!(receive_bytes(theirs.as_fd(), &mut buffer, RecvFlags::empty()).expect("a read").is_none());
}

#[test]
fn the_longest_packet_passes_and_a_longer_one_is_refused() {
    let (ours, theirs) = pair().expect("a pair");
    send_bytes(ours.as_fd(), &vec![b'a'; PACKET_BYTES], &[], SendFlags::empty()).expect("sent");
    let refused = send_bytes(ours.as_fd(), &vec![b'a'; PACKET_BYTES + 1], &[], SendFlags::empty());
    assert_eq!(refused, Err(Errno::MSGSIZE));
    let fds = vec![theirs.as_fd(); PACKET_FDS + 1];
    assert_eq!(send_bytes(ours.as_fd(), b"a", &fds, SendFlags::empty()), Err(Errno::MSGSIZE));
    let mut buffer = Vec::new();
    let received = receive_bytes(theirs.as_fd(), &mut buffer, RecvFlags::empty()).expect("a read").expect("one");
    assert_eq!(received.0.len(), PACKET_BYTES);
    // What another program sends is bounded, too.
    let long = vec![b'a'; PACKET_BYTES + 1];
    assert_eq!(rustix::net::send(&ours, &long, SendFlags::empty()).expect("sent"), PACKET_BYTES + 1);
    assert_eq!(receive_bytes(theirs.as_fd(), &mut buffer, RecvFlags::empty()).err(), Some(Errno::MSGSIZE));
}

#[test]
fn nothing_to_read_is_not_an_end() {
    let (_ours, theirs): (OwnedFd, OwnedFd) = pair().expect("a pair");
    assert_eq!(receive_bytes(theirs.as_fd(), &mut Vec::new(), RecvFlags::DONTWAIT).err(), Some(Errno::AGAIN));
}
