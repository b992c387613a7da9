//! Pulls from a real registry on loopback.

mod support;

use std::time::Duration;

use image::{Bounds, EnsureOptions, Error, Image, Platform, Pruned, Stage};
use support::real::{Auth, PASSWORD, Registry, USERNAME};
use support::*;

fn simple() -> Recipe {
    Recipe::new(own_architecture(), &[tar(&[("etc/os-release", b"ID=test\n")]), noise(1, 300_000)])
}

#[tokio::test]
async fn an_image_is_pulled_once_and_then_local() {
    let mut registry = Registry::start(Auth::Nobody);
    let recipe = simple();
    registry.push("team/app", "v1", &recipe).await;
    let ground = Ground::new().await;
    let name = format!("{}/team/app:v1", registry.host);
    assert_eq!(ground.store.resolve(&name).await.unwrap(), None);

    let reports = Reports::default();
    let image = ground.store.ensure(&name, EnsureOptions::default(), &reports.sink()).await.unwrap();
    assert_eq!(image.id, digest(&recipe.config));
    assert_eq!(image.references, std::slice::from_ref(&name));
    assert_eq!(image.layers.len(), 2);
    assert_eq!(image.size_bytes, 8 + 300_000);
    assert_eq!(image.created_at.as_deref(), Some("2026-01-02T03:04:05Z"));
    assert_eq!(image.config.entrypoint, ["/entry"]);
    assert_eq!(image.config.cmd, ["--flag"]);
    assert_eq!(image.config.env[2], ("A".to_owned(), "b=c".to_owned()));
    assert_eq!((image.config.working_dir.as_deref(), image.config.user.as_deref()), (Some("/work"), Some("1000:100")));
    let release = ground.layers().join(image.layers[0].as_str()).join("fs/etc/os-release");
    assert_eq!(std::fs::read_to_string(release).unwrap(), "ID=test\n");

    let stages: Vec<Stage> = reports.0.lock().unwrap().iter().map(|progress| progress.stage).collect();
    assert!(stages.is_sorted(), "{stages:?}");
    let last = *reports.0.lock().unwrap().last().unwrap();
    assert_eq!((last.stage, last.done_bytes, last.layers_done), (Stage::Done, last.total_bytes, 2));

    // OS-020: what is here needs no registry.
    registry.stop();
    assert_eq!(ground.ensure(&name).await.unwrap(), image);
    assert_eq!(ground.ensure(&image.id).await.unwrap(), image);
    assert_eq!(ground.store.resolve(&image.id[..19]).await.unwrap(), Some(image.clone()));
    assert_eq!(ground.store.list().await.unwrap(), [image]);
    let error = ground.store.pull(&name, EnsureOptions::default(), &|_| {}).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn a_missing_image_says_so() {
    let registry = Registry::start(Auth::Nobody);
    registry.push("team/app", "v1", &simple()).await;
    let ground = Ground::new().await;
    for rest in ["team/app:v2", "team/other:v1"] {
        let error = ground.ensure(&format!("{}/{rest}", registry.host)).await.unwrap_err();
        assert!(matches!(&error, Error::NotFound { reference } if reference.ends_with(rest)), "{error}");
    }
}

#[tokio::test]
async fn a_private_image_is_served_only_to_accounts_that_the_registry_accepted() {
    let mut registry = Registry::start(Auth::Htpasswd);
    registry.push("secret/app", "v1", &simple()).await;
    let ground = Ground::new().await;
    let name = format!("{}/secret/app:v1", registry.host);

    let error = ground.ensure(&name).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { authenticated: false, .. }), "{error}");
    let error = ground.ensure_as(&name, USERNAME, "a wrong password").await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { authenticated: true, .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("a wrong password"));
    let image = ground.ensure_as(&name, USERNAME, PASSWORD).await.unwrap();

    // It is here now, and still nobody else's.
    assert!(matches!(ground.ensure(&name).await.unwrap_err(), Error::Unauthorized { .. }));
    assert!(matches!(ground.ensure_as(&name, USERNAME, "guess").await.unwrap_err(), Error::Unauthorized { .. }));
    assert!(matches!(ground.ensure(&image.id).await.unwrap_err(), Error::NotLocal { .. }));
    registry.stop();
    assert_eq!(ground.ensure_as(&name, USERNAME, PASSWORD).await.unwrap(), image);
    assert!(matches!(ground.ensure(&name).await.unwrap_err(), Error::Unreachable { .. }));

    let mut files = Vec::new();
    collect(ground.directory.path(), &mut files);
    for (path, content) in files {
        assert!(
            !content.windows(PASSWORD.len()).any(|window| window == PASSWORD.as_bytes()),
            "{} has the password",
            path.display()
        );
    }
    assert!(!format!("{:?}", account(USERNAME, PASSWORD)).contains(PASSWORD));
}

#[tokio::test]
async fn a_digest_pins_the_content() {
    let registry = Registry::start(Auth::Nobody);
    let recipe = simple();
    registry.push("app", "v1", &recipe).await;
    let ground = Ground::new().await;
    let pinned = format!("{}/app@{}", registry.host, digest(&recipe.manifest));
    let image = ground.ensure(&pinned).await.unwrap();
    assert_eq!(image.references, [pinned]);
    let absent = format!("{}/app@{}", registry.host, digest(b"something else"));
    assert!(matches!(ground.ensure(&absent).await.unwrap_err(), Error::NotFound { .. }));
}

#[tokio::test]
async fn the_platform_is_chosen_and_only_binds_when_given() {
    let registry = Registry::start(Auth::Nobody);
    let own = Recipe::new(own_architecture(), &[tar(&[("own", b"1")])]);
    let other = Recipe::new(other_architecture(), &[tar(&[("other", b"1")])]);
    for recipe in [&own, &other] {
        registry.push("app", "single", recipe).await;
    }
    registry.push_blob("app", b"attestation").await;
    let index = serde_json::from_slice::<serde_json::Value>(&index(&[
        (other_architecture(), &other),
        (own_architecture(), &own),
    ]))
    .unwrap();
    let mut index = index;
    // The registry wants every manifest of an index to exist; the attestation does not.
    index["manifests"].as_array_mut().unwrap().pop();
    let bytes = serde_json::to_vec(&index).unwrap();
    registry.push_manifest("app", "multi", "application/vnd.oci.image.index.v1+json", &bytes).await;

    let ground = Ground::new().await;
    let name = format!("{}/app:multi", registry.host);
    let for_platform =
        |text: &str| EnsureOptions { platform: Some(text.parse::<Platform>().unwrap()), ..EnsureOptions::default() };
    let ours = ground.ensure(&name).await.unwrap();
    assert_eq!(ours.id, digest(&own.config));
    let theirs =
        ground.store.ensure(&name, for_platform(&format!("linux/{}", other_architecture())), &|_| {}).await.unwrap();
    assert_eq!(theirs.id, digest(&other.config));
    // Both stay, and without a platform it is this machine's.
    assert_eq!(ground.ensure(&name).await.unwrap().id, ours.id);

    let error = ground.store.ensure(&name, for_platform("linux/s390x"), &|_| {}).await.unwrap_err();
    let Error::Platform { available, .. } = &error else { panic!("{error}") };
    assert_eq!(available.len(), 2);
    // `single` is for the other processor: fine unless a platform is asked for.
    let single = format!("{}/app:single", registry.host);
    assert_eq!(ground.ensure(&single).await.unwrap().id, digest(&other.config));
    let error = ground
        .store
        .ensure(&single, for_platform(&format!("linux/{}", own_architecture())), &|_| {})
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Platform { .. }), "{error}");
}

#[tokio::test]
async fn a_moved_tag_is_seen_by_a_pull() {
    let registry = Registry::start(Auth::Nobody);
    registry.push("app", "latest", &simple()).await;
    let ground = Ground::new().await;
    let name = format!("{}/app", registry.host);
    let old = ground.ensure(&name).await.unwrap();
    let newer = Recipe::new(own_architecture(), &[noise(9, 1000)]);
    registry.push("app", "latest", &newer).await;
    assert_eq!(ground.ensure(&name).await.unwrap().id, old.id);
    let image = ground.store.pull(&name, EnsureOptions::default(), &|_| {}).await.unwrap();
    assert_eq!(image.id, digest(&newer.config));
    assert_eq!(ground.ensure(&name).await.unwrap().id, image.id);
    assert_eq!(
        ground.store.list().await.unwrap().iter().map(|image| image.references.len()).collect::<Vec<_>>(),
        [1, 0]
    );
}

/// Makes the layers of an image look as if nobody had asked for them for so many hours.
fn forget(ground: &Ground, image: &Image, hours: u64) {
    for layer in &image.layers {
        let path = ground.directory.path().join("store/layers").join(format!("{layer}.json"));
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
    }
}

async fn names(ground: &Ground) -> Vec<String> {
    let images = ground.store.list().await.unwrap();
    images.iter().flat_map(|image| &image.references).map(|name| name.rsplit('/').next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn images_that_nobody_uses_go_by_age_and_by_size() {
    let registry = Registry::start(Auth::Nobody);
    let ground = Ground::new().await;
    let mut images = Vec::new();
    for (tag, seed, hours) in [("a", 1, 50), ("b", 2, 40), ("c", 3, 30), ("d", 4, 0)] {
        registry.push("app", tag, &Recipe::new(own_architecture(), &[noise(seed, 100_000)])).await;
        let image = ground.ensure(&format!("{}/app:{tag}", registry.host)).await.unwrap();
        forget(&ground, &image, hours);
        images.push(image);
    }
    let archive = ground.directory.path().join("import.tar");
    std::fs::write(&archive, tar(&[("imported", b"x")])).unwrap();
    let imported = ground.store.import(&archive, Some("imported:1"), &|_| {}).await.unwrap();
    forget(&ground, &imported, 1000);
    let collect = async |in_use: &[&Image], bounds: Bounds| {
        let in_use = in_use.iter().flat_map(|image| image.layers.clone()).collect();
        ground.store.collect(&in_use, bounds).await.unwrap()
    };
    let old = |hours: u64| Bounds { unused_for: Some(Duration::from_secs(hours * 3600)), ..Bounds::default() };
    let small = |bytes| Bounds { max_bytes: Some(bytes), ..Bounds::default() };

    assert_eq!(collect(&[], Bounds::default()).await, Pruned::default());
    assert_eq!(collect(&[], old(51)).await, Pruned::default());
    // A sandbox stands on it.
    assert_eq!(collect(&[&images[0]], old(45)).await, Pruned::default());
    let pruned = collect(&[], old(45)).await;
    assert_eq!(
        (pruned.images, pruned.layers, pruned.bytes),
        (vec![images[0].id.clone()], images[0].layers.clone(), 100_000)
    );
    assert!(!ground.layers().join(images[0].layers[0].as_str()).exists());
    assert_eq!(names(&ground).await, ["app:b", "app:c", "app:d", "imported:1"].map(|name| name.to_owned()));

    assert_eq!(collect(&[], small(300_001)).await, Pruned::default());
    // The one unused for longest stays where it is in use; what was just asked for stays, and so does what was imported.
    assert_eq!(collect(&[&images[1]], small(250_000)).await.images, [images[2].id.clone()]);
    assert_eq!(collect(&[], small(0)).await.images, [images[1].id.clone()]);
    assert_eq!(names(&ground).await, ["app:d", "imported:1"].map(|name| name.to_owned()));
    // What went is had again.
    assert_eq!(ground.ensure(&format!("{}/app:a", registry.host)).await.unwrap().id, images[0].id);
}

#[tokio::test]
async fn what_was_imported_under_a_pulled_name_is_not_collected() {
    let registry = Registry::start(Auth::Nobody);
    let ground = Ground::new().await;
    let name = format!("{}/app:a", registry.host);
    registry.push("app", "a", &simple()).await;
    let archive = ground.directory.path().join("import.tar");
    std::fs::write(&archive, tar(&[("imported", b"x")])).unwrap();
    let image = ground.store.import(&archive, Some(&name), &|_| {}).await.unwrap();
    forget(&ground, &image, 1000);
    let bounds = Bounds { unused_for: Some(Duration::from_secs(3600)), max_bytes: Some(0) };
    assert_eq!(ground.store.collect(&Default::default(), bounds).await.unwrap(), Pruned::default());
    assert_eq!(ground.ensure(&name).await.unwrap().id, image.id);
}
