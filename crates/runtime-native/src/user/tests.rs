use super::*;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001:App:/home/app:/bin/sh\nbroken\n";
const GROUP: &str = "root:x:0:\nstaff:x:50:app\n";

fn check(text: &str, uid: u32, gid: u32) {
    let Identity { user, .. } = resolve(text, PASSWD, GROUP).expect("resolves");
    assert_eq!((user.uid, user.gid), (uid, gid), "{text}");
}

#[test]
fn names_and_numbers_in_every_form() {
    check("app", 1000, 1001);
    check("1000", 1000, 1001);
    check("app:staff", 1000, 50);
    check("1000:7", 1000, 7);
    check("4242", 4242, 0);
    check("4242:staff", 4242, 50);
}

#[test]
fn unknown_names_are_the_images_fault() {
    for text in ["nobody-here", "app:nowhere"] {
        assert_eq!(resolve(text, PASSWD, GROUP).expect_err("refused").kind, Kind::Image);
    }
}
