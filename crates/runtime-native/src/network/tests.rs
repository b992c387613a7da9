use super::*;

#[test]
fn what_the_kernel_lacks_is_told_as_that() {
    for errno in [Errno::OPNOTSUPP, Errno::PROTONOSUPPORT, Errno::AFNOSUPPORT, Errno::NOENT] {
        let failure = refused("add a rule", errno);
        assert_eq!(failure.kind, Kind::Unsupported, "{failure}");
        assert!(failure.message.contains("nf_tables") && failure.message.contains("add a rule"), "{failure}");
    }
    assert_eq!(refused("add a rule", Errno::NOMEM).kind, Kind::Exhausted);
    assert_eq!(refused("add a rule", Errno::PERM).kind, Kind::Internal);
}
