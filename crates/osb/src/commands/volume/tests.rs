use super::*;

#[test]
fn volumes_of_a_command_line_are_read() {
    let mount = |text| parse_mount(text).expect(text);
    assert_eq!(mount("data:/data").source, Source::Named("data".to_owned()));
    assert_eq!(mount("/srv/a/:/a").source, Source::Host("/srv/a".to_owned()));
    assert!(mount("data:/data:ro").read_only && !mount("data:/data:rw").read_only);
    let here = std::env::current_dir().expect("there is one").canonicalize().expect("it is there");
    assert_eq!(mount(".:/work").source, Source::Host(here.to_str().expect("text").to_owned()));
    assert_eq!(mount("/a:b:/c").source, Source::Host("/a:b".to_owned()));
    for text in ["", "data", "data:", ":/data", "data:data", "data:ro", "/a", "/a:ro"] {
        assert!(parse_mount(text).is_err(), "{text}");
    }
}

#[test]
fn a_request_has_one_backend_for_each_and_no_nulls() {
    let mounts = [parse_mount("data:/data:ro").expect("named"), parse_mount("/srv:/srv").expect("host")];
    let expected = json!([
        {"name": "volume-0", "pvc": {"claimName": "data"}, "mountPath": "/data", "readOnly": true},
        {"name": "volume-1", "host": {"path": "/srv"}, "mountPath": "/srv", "readOnly": false},
    ]);
    assert_eq!(Value::Array(requested(&mounts)), expected);
}

#[test]
fn without_a_server_paths_must_be_there_and_names_are_refused() {
    let paths = |text: &str| own_paths(&[parse_mount(text).expect(text)]);
    assert_eq!(paths("/usr:/x").expect("is there"), ["/usr"]);
    assert!(paths("/no/such/path:/x").is_err() && paths("data:/x").is_err());
}
