//! Images from files and directories.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use image::unpack::Limits;
use image::{EnsureOptions, Error, Stage};
use serde_json::json;
use support::*;

/// Writes a layout; gives the descriptor of each image.
fn layout(directory: &Path, images: &[(&Recipe, Option<&str>)]) {
    let blobs = directory.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let mut manifests = Vec::new();
    for (recipe, name) in images {
        for blob in recipe.blobs().chain([&recipe.manifest]) {
            std::fs::write(blobs.join(hex(blob)), blob).unwrap();
        }
        let annotations = name.map(|name| json!({"org.opencontainers.image.ref.name": name})).unwrap_or(json!({}));
        manifests.push(json!({"mediaType": recipe.manifest_type, "digest": digest(&recipe.manifest), "size": recipe.manifest.len(), "annotations": annotations}));
    }
    std::fs::write(
        directory.join("index.json"),
        serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": manifests})).unwrap(),
    )
    .unwrap();
}

/// Writes what `docker save` of before version 25 writes.
fn docker_archive(images: &[(&[&str], &[Vec<u8>])]) -> Vec<u8> {
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut items = Vec::new();
    for (tags, layers) in images {
        let diff_ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
        let config = Recipe::with(own_architecture(), &diff_ids, Vec::new()).config;
        let config_name = format!("{}.json", hex(&config));
        let names: Vec<String> = layers.iter().map(|layer| format!("{}/layer.tar", hex(layer))).collect();
        items.push(json!({"Config": config_name, "RepoTags": tags, "Layers": names}));
        files.extend(names.into_iter().zip(layers.iter().cloned()));
        files.push((config_name, config));
    }
    files.push(("manifest.json".to_owned(), serde_json::to_vec(&items).unwrap()));
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, content)| (name.as_str(), content.as_slice())).collect();
    tar(&files)
}

fn pack_directory(directory: &Path) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_dir_all(".", directory).unwrap();
    builder.into_inner().unwrap()
}

struct Sources {
    directory: tempfile::TempDir,
}

impl Sources {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

fn read(ground: &Ground, layer: &image::LayerId, name: &str) -> String {
    std::fs::read_to_string(ground.layers().join(layer.as_str()).join("fs").join(name)).unwrap()
}

#[tokio::test]
async fn a_root_file_system_becomes_the_same_image_however_it_is_packed() {
    let (ground, sources) = (Ground::new().await, Sources::new());
    let root = tar(&[("bin/sh", b"#!"), ("etc/hostname", b"box\n")]);
    let mut ids = Vec::new();
    for (name, content) in [("plain", root.clone()), ("packed", gzip(&root)), ("misnamed.gz", zstd(&root))] {
        let reports = Reports::default();
        let image =
            ground.store.import(&sources.write(name, &content), Some("my/box:1"), &reports.sink()).await.unwrap();
        assert_eq!(reports.0.lock().unwrap().last().unwrap().stage, Stage::Done);
        assert_eq!(read(&ground, &image.layers[0], "etc/hostname"), "box\n");
        assert_eq!(image.config.cmd, ["/bin/sh"]);
        ids.push(image.id);
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    let image = ground.ensure("my/box:1").await.unwrap();
    assert_eq!(image.references, ["docker.io/my/box:1"]);
    assert_eq!(ground.store.list().await.unwrap().len(), 1);
    assert_eq!(std::fs::read_dir(ground.layers()).unwrap().count(), 1);
}

#[tokio::test]
async fn an_import_without_a_name_is_known_by_its_id_and_stays() {
    let (ground, sources) = (Ground::new().await, Sources::new());
    let image = ground.store.import(&sources.write("root.tar", &tar(&[("a", b"1")])), None, &|_| {}).await.unwrap();
    assert_eq!(image.references, [""; 0]);
    assert_eq!(ground.ensure(&image.id).await.unwrap(), image);
    ground.store.prune(&Default::default()).await.unwrap();
    assert_eq!(ground.ensure(&image.id).await.unwrap(), image);
    let removed = ground.store.remove(&image.id).await.unwrap();
    assert_eq!(removed.image, Some(image.id.clone()));
    assert!(matches!(ground.ensure(&image.id).await.unwrap_err(), Error::NotLocal { .. }));
}

#[tokio::test]
async fn docker_archives_bring_their_names() {
    let (ground, sources) = (Ground::new().await, Sources::new());
    let (base, app) = (tar(&[("base", b"b")]), tar(&[("app", b"a")]));
    let archive = docker_archive(&[(&["app:1", "registry.example/app:2"], &[base.clone(), app.clone()])]);
    for (name, content) in [("app.tar", archive.clone()), ("app.tar.gz", gzip(&archive))] {
        let image = ground.store.import(&sources.write(name, &content), None, &|_| {}).await.unwrap();
        assert_eq!(image.references, ["docker.io/library/app:1", "registry.example/app:2"]);
        assert_eq!(read(&ground, &image.layers[1], "app"), "a");
        assert_eq!(image.config.entrypoint, ["/entry"]);
    }

    let several = docker_archive(&[(&["one:1"], &[base]), (&["two:1"], &[app])]);
    let path = sources.write("several.tar", &several);
    let error = ground.store.import(&path, None, &|_| {}).await.unwrap_err();
    assert!(matches!(&error, Error::SeveralImages { names } if names.len() == 2), "{error}");
    let image = ground.store.import(&path, Some("two:1"), &|_| {}).await.unwrap();
    assert_eq!(read(&ground, &image.layers[0], "app"), "a");
}

#[tokio::test]
async fn layouts_are_read_from_directories_and_archives() {
    let sources = Sources::new();
    let recipe = Recipe::new(own_architecture(), &[tar(&[("f", b"content")])]);
    let path = sources.directory.path().join("layout");
    layout(&path, &[(&recipe, Some("example.org/app:3"))]);
    let packed = pack_directory(&path);
    for source in [path.clone(), sources.write("plain.tar", &packed), sources.write("packed.tgz", &gzip(&packed))] {
        let ground = Ground::new().await;
        let image = ground.store.import(&source, None, &|_| {}).await.unwrap();
        assert_eq!((image.id, image.references), (digest(&recipe.config), vec!["example.org/app:3".to_owned()]));
        assert_eq!(read(&ground, &image.layers[0], "f"), "content");
    }
    // A blob that was changed is found out.
    let ground = Ground::new().await;
    let before = ground.listing();
    std::fs::write(path.join("blobs/sha256").join(hex(&recipe.layers[0])), gzip(b"changed")).unwrap();
    let error = ground.store.import(&path, None, &|_| {}).await.unwrap_err();
    assert!(matches!(error, Error::DigestMismatch { .. }), "{error}");
    assert_eq!(ground.listing(), before);
}

#[tokio::test]
async fn a_layout_of_several_images_needs_a_name() {
    let (ground, sources) = (Ground::new().await, Sources::new());
    let first = Recipe::new(own_architecture(), &[tar(&[("f", b"1")])]);
    let second = Recipe::new(own_architecture(), &[tar(&[("f", b"2")])]);
    layout(sources.directory.path(), &[(&first, Some("x/first:1")), (&second, Some("x/second:1"))]);
    let import = |name: Option<&'static str>| ground.store.import(sources.directory.path(), name, &|_| {});
    assert!(matches!(import(None).await.unwrap_err(), Error::SeveralImages { .. }));
    assert_eq!(import(Some("x/second:1")).await.unwrap().id, digest(&second.config));
}

#[tokio::test]
async fn what_skopeo_writes_is_read() {
    let sources = Sources::new();
    let recipe = Recipe::new(own_architecture(), &[tar(&[("f", b"content")]), noise(1, 50_000)]);
    let layout_path = sources.directory.path().join("layout");
    layout(&layout_path, &[(&recipe, Some("v1"))]);
    let archive = sources.directory.path().join("docker.tar");
    let oci_archive = sources.directory.path().join("oci.tar");
    for target in [
        format!("docker-archive:{}:example.org/app:9", archive.display()),
        format!("oci-archive:{}:v1", oci_archive.display()),
    ] {
        let status = Command::new("skopeo")
            .args(["--insecure-policy", "--tmpdir", sources.directory.path().to_str().unwrap(), "copy", "-q"])
            .arg(format!("oci:{}:v1", layout_path.display()))
            .arg(target)
            .status()
            .expect("start skopeo; on Debian: apt-get install skopeo");
        assert!(status.success());
    }
    let ground = Ground::new().await;
    let image = ground.store.import(&archive, None, &|_| {}).await.unwrap();
    assert_eq!(image.references, ["example.org/app:9"]);
    assert_eq!(read(&ground, &image.layers[0], "f"), "content");
    // A bare tag is no name.
    let ground = Ground::new().await;
    let image = ground.store.import(&oci_archive, None, &|_| {}).await.unwrap();
    assert_eq!(image.references, [""; 0]);
    assert_eq!(image.layers.len(), 2);
}

#[tokio::test]
async fn what_is_no_image_is_refused_with_advice() {
    let (ground, sources) = (Ground::new().await, Sources::new());
    let root = tar(&[("file", &[1; 5000])]);
    let before = ground.listing();
    for (path, reason) in [
        (sources.write("text", b"hello"), "cut off"),
        (sources.write("empty", b""), "without a single entry"),
        (sources.write("zeros", &[0; 1024]), "without a single entry"),
        (sources.write("cut", &root[..3000]), "cut off"),
        (sources.write("no-end", &root[..512 + 5120]), "no end mark"),
        (sources.write("cut.gz", &gzip(&root)[..60]), ""),
        (sources.directory.path().to_owned(), "tar -C"),
    ] {
        let error = ground.store.import(&path, Some("x"), &|_| {}).await.unwrap_err();
        assert!(matches!(&error, Error::UnknownKind { .. }) && error.to_string().contains(reason), "{error}");
    }
    let missing = ground.store.import(&sources.directory.path().join("missing"), None, &|_| {}).await.unwrap_err();
    assert!(matches!(missing, Error::Io { .. }), "{missing}");
    let error = ground.store.import(&sources.write("root.tar", &root), Some("host"), &|_| {}).await.unwrap_err();
    assert!(matches!(error, Error::Reference { .. }), "{error}");
    assert_eq!(ground.listing(), before);
}

#[tokio::test]
async fn attack_14_a_hostile_root_file_system_leaves_the_store_unchanged() {
    let sources = Sources::new();
    let ground = Ground::with(Limits { entries: 10, ..Limits::default() }).await;
    let names: Vec<String> = (0..11).map(|n| format!("f{n}")).collect();
    let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let error = ground.store.import(&sources.write("many.tar", &tar(&many)), Some("x"), &|_| {}).await.unwrap_err();
    assert!(matches!(error, Error::Unpack { .. }), "{error}");
    assert_eq!(std::fs::read_dir(ground.layers()).unwrap().count(), 0);
    assert_eq!(ground.store.list().await.unwrap(), []);
    assert!(!ground.directory.path().join("store/partial").read_dir().unwrap().any(|_| true));
}

#[tokio::test]
async fn links_in_an_archive_of_images_lead_nowhere_else() {
    let (ground, sources) = (Ground::new().await, Sources::new());
    let layer = tar(&[("f", b"1")]);
    let config = Recipe::with(own_architecture(), &[digest(&layer)], Vec::new()).config;
    let build = |target: &str| {
        let mut builder = tar::Builder::new(Vec::new());
        let mut add = |name: &str, content: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_size(content.len() as u64);
            builder.append_data(&mut header, name, content).unwrap();
        };
        add(&format!("{}/layer.tar", hex(b"real")), &layer);
        add(&format!("{}.json", hex(&config)), &config);
        let link = format!("{}/layer.tar", hex(b"link"));
        let items = json!([{"Config": format!("{}.json", hex(&config)), "RepoTags": ["x:1"], "Layers": [link]}]);
        add("manifest.json", &serde_json::to_vec(&items).unwrap());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, &link, target).unwrap();
        builder.into_inner().unwrap()
    };
    let good = build(&format!("../{}/layer.tar", hex(b"real")));
    ground.store.import(&sources.write("good.tar", &good), None, &|_| {}).await.unwrap();
    let ground = Ground::new().await;
    for target in ["/etc/passwd", "../../../etc/passwd", &format!("../{}/layer.tar", hex(b"link"))] {
        let error = ground.store.import(&sources.write("bad.tar", &build(target)), None, &|_| {}).await.unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
    }
}

#[tokio::test]
async fn a_platform_that_a_local_image_does_not_have_is_said_so() {
    let (ground, sources) = (Ground::new().await, Sources::new());
    let path = sources.write("root.tar", &tar(&[("a", b"1")]));
    // Nothing listens there, as for a name that exists nowhere else.
    let name = "127.0.0.1:1/only/here";
    ground.store.import(&path, Some(name), &|_| {}).await.unwrap();
    let with = |architecture: &str| EnsureOptions {
        platform: Some(format!("linux/{architecture}").parse().unwrap()),
        ..EnsureOptions::default()
    };
    ground.ensure(name).await.unwrap();
    ground.store.ensure(name, with(own_architecture()), &|_| {}).await.unwrap();
    let error = ground.store.ensure(name, with(other_architecture()), &|_| {}).await.unwrap_err();
    assert!(matches!(&error, Error::Platform { available, .. } if available.len() == 1), "{error}");
}
