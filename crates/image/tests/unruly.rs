//! Pulls from a registry that misbehaves, and many pulls at once.

mod support;

use std::time::Duration;

use axum::http::StatusCode;
use futures_util::future::join_all;
use image::unpack::Limits;
use image::{EnsureOptions, Error, UnpackError};
use support::fake::{Fake, Habits};
use support::*;
use tokio::sync::watch;

/// Bound of every wait for something that must happen.
const DEADLINE: Duration = Duration::from_secs(30);

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, work).await.expect("nothing happened in time")
}

fn recipe() -> Recipe {
    Recipe::new(own_architecture(), &[noise(1, 200_000), noise(2, 100_000)])
}

#[tokio::test]
async fn a_bearer_token_is_fetched_once_and_the_password_goes_nowhere_else() {
    let fake = Fake::start(Habits { account: Some(("me".to_owned(), "s3cret".to_owned())), ..Habits::default() }).await;
    fake.put("app", "v1", &recipe());
    let ground = Ground::new().await;
    let name = fake.name("app:v1");
    assert!(matches!(ground.ensure(&name).await.unwrap_err(), Error::Unauthorized { authenticated: false, .. }));
    assert!(matches!(
        ground.ensure_as(&name, "me", "wrong").await.unwrap_err(),
        Error::Unauthorized { authenticated: true, .. }
    ));
    let before = fake.requests("/token").len();
    ground.ensure_as(&name, "me", "s3cret").await.unwrap();
    let tokens = fake.requests("/token");
    assert_eq!(tokens.len(), before + 1);
    assert!(
        tokens[before].contains("service=fake") && tokens[before].contains("scope=repository%3Ax%3Apull"),
        "{tokens:?}"
    );
    assert_eq!(
        fake.requests("authorization=Basic").len(),
        fake.requests("/token").iter().filter(|line| line.contains("Basic")).count()
    );
}

#[tokio::test]
async fn a_broken_download_goes_on_where_it_broke() {
    let fake = Fake::start(Habits { break_after: Some(30_000), ..Habits::default() }).await;
    let recipe = Recipe::new(own_architecture(), &[noise(1, 200_000)]);
    fake.put("app", "v1", &recipe);
    let ground = Ground::new().await;
    within(ground.ensure(&fake.name("app:v1"))).await.unwrap();
    let ranges = fake.requests("range=bytes=");
    assert!(ranges.len() >= 6, "{ranges:?}");
    assert!(ranges[0].contains("range=bytes=30000-"), "{ranges:?}");
}

#[tokio::test]
async fn a_download_survives_its_process() {
    let fake = Fake::start(Habits { break_after: Some(50_000), ..Habits::default() }).await;
    let recipe = Recipe::new(own_architecture(), &[noise(1, 200_000)]);
    fake.put("app", "v1", &recipe);
    let ground = Ground::new().await;
    // The registry goes away in the middle.
    let name = fake.name("app:v1");
    let interrupted = ground.ensure(&name);
    let watch = async {
        while fake.requests("range=bytes=50000-").is_empty() {
            tokio::task::yield_now().await;
        }
        fake.change(|habits| habits.answers = Some((StatusCode::GONE, String::new())));
    };
    let (outcome, ()) = within(futures_util::future::join(interrupted, watch)).await;
    outcome.unwrap_err();

    fake.change(|habits| *habits = Habits::default());
    let again = open(ground.directory.path(), Limits::default()).await;
    again.ensure(&name, EnsureOptions::default(), &|_| {}).await.unwrap();
    let last = fake.requests("/blobs/").pop().unwrap();
    assert!(last.contains("range=bytes=") && !last.contains("range=bytes=0-"), "it began anew: {last}");
}

#[tokio::test]
async fn a_registry_without_ranges_is_asked_for_everything_again() {
    let fake = Fake::start(Habits { ignores_ranges: true, break_after: Some(50_000), ..Habits::default() }).await;
    fake.put("app", "v1", &Recipe::new(own_architecture(), &[noise(1, 200_000)]));
    let ground = Ground::new().await;
    let error = within(ground.ensure(&fake.name("app:v1"))).await.unwrap_err();
    assert!(matches!(error, Error::Interrupted { .. }), "{error}");
    fake.change(|habits| habits.break_after = None);
    ground.ensure(&fake.name("app:v1")).await.unwrap();
}

#[tokio::test]
async fn content_that_is_not_its_digest_leaves_the_store_unchanged() {
    let fake = Fake::start(Habits { corrupts: true, ..Habits::default() }).await;
    let single = Recipe::new(own_architecture(), &[noise(1, 200_000)]);
    fake.put("app", "v1", &single);
    let ground = Ground::new().await;
    let before = ground.listing();
    let error = ground.ensure(&fake.name("app:v1")).await.unwrap_err();
    assert!(matches!(error, Error::DigestMismatch { .. }), "{error}");
    assert_eq!(ground.listing(), before);
    fake.change(|habits| habits.corrupts = false);
    ground.ensure(&fake.name("app:v1")).await.unwrap();
}

#[tokio::test]
async fn attack_14_a_hostile_layer_leaves_the_store_unchanged() {
    let fake = Fake::start(Habits::default()).await;
    let mut hostile = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.as_old_mut().name[..9].copy_from_slice(b"../escape");
    header.set_size(0);
    header.set_cksum();
    hostile.append(&header, &b""[..]).unwrap();
    let hostile = hostile.into_inner().unwrap();
    let wrong_id = Recipe::with(own_architecture(), &[digest(b"other")], vec![gzip(&noise(1, 1000))]);
    let bomb = Recipe::new(own_architecture(), &[noise(3, 2_000_000)]);
    for (tag, recipe, reason) in [
        ("escape", Recipe::new(own_architecture(), &[hostile]), "upwards"),
        ("id", wrong_id, "hashes to"),
        ("bomb", bomb, "limit of 1000000"),
        ("garbage", Recipe::with(own_architecture(), &[digest(b"x")], vec![gzip(&[7; 5000])]), "damaged"),
    ] {
        fake.put("app", tag, &recipe);
        let ground = Ground::with(Limits { total_bytes: 1_000_000, ..Limits::default() }).await;
        let name = fake.name(&format!("app:{tag}"));
        let before = ground.listing();
        let error = ground.ensure(&name).await.unwrap_err();
        let Error::Unpack { source, .. } = &error else { panic!("{error}") };
        assert!(source.to_string().contains(reason), "{source}");
        assert_eq!(ground.listing(), before, "{tag}");
        assert_eq!(ground.store.resolve(&name).await.unwrap(), None);
        assert!(!ground.directory.path().join("escape").exists());
    }
}

#[tokio::test]
async fn a_full_disk_is_named_and_leaves_nothing() {
    let fake = Fake::start(Habits::default()).await;
    fake.put("app", "v1", &Recipe::new(own_architecture(), &[noise(1, 3_000_000)]));
    let directory = tempfile::tempdir().unwrap();
    let layers = directory.path().join("layers");
    std::fs::create_dir(&layers).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(&layers)
        .status()
        .unwrap();
    assert!(mounted.success());
    let store = open(directory.path(), Limits::default()).await;
    let error = store.ensure(&fake.name("app:v1"), EnsureOptions::default(), &|_| {}).await.unwrap_err();
    let left = std::fs::read_dir(&layers).unwrap().count();
    // The store has the directory open.
    drop(store);
    assert!(std::process::Command::new("umount").arg(&layers).status().unwrap().success());
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert_eq!(left, 0);
}

#[tokio::test]
async fn many_who_ask_at_once_share_one_download() {
    let fake = Fake::start(Habits::default()).await;
    let base = noise(1, 500_000);
    let (first, second) = (
        Recipe::new(own_architecture(), &[base.clone(), noise(2, 1000)]),
        Recipe::new(own_architecture(), &[base.clone(), noise(3, 1000)]),
    );
    fake.put("first", "v1", &first);
    fake.put("second", "v1", &second);
    let ground = Ground::new().await;
    // A second store on the same directory stands for a second process.
    let other = open(ground.directory.path(), Limits::default()).await;
    let names = [fake.name("first:v1"), fake.name("second:v1")];
    let asks = (0..20).map(|n| {
        let store = if n % 3 == 0 { &other } else { &ground.store };
        store.ensure(&names[n % 2], EnsureOptions::default(), &|_| {})
    });
    for (n, image) in within(join_all(asks)).await.into_iter().enumerate() {
        assert_eq!(image.unwrap().id, digest(&[&first, &second][n % 2].config));
    }
    let of = |repository: &str, layer: &[u8]| fake.requests(&format!("/v2/{repository}/blobs/{}", digest(layer))).len();
    assert_eq!(of("first", &first.layers[0]) + of("second", &first.layers[0]), 1, "the base came more than once");
    assert_eq!((of("first", &first.layers[1]), of("second", &second.layers[1])), (1, 1));
}

#[tokio::test]
async fn a_download_ends_when_the_last_who_waits_goes() {
    let (gate, opened) = watch::channel(false);
    let fake = Fake::start(Habits { gate: Some(opened), ..Habits::default() }).await;
    fake.put("app", "v1", &recipe());
    let ground = Ground::new().await;
    let name = fake.name("app:v1");
    let blobs_asked = async {
        while fake.requests("/blobs/").is_empty() {
            tokio::task::yield_now().await;
        }
    };
    // One of two goes: the other still gets its image.
    let (leaver, stayer) = (Box::pin(ground.ensure(&name)), ground.ensure(&name));
    let both = async {
        tokio::select! {
            _ = leaver => panic!("the gate is closed"),
            () = blobs_asked => {}
        }
        gate.send_replace(true);
    };
    let (image, ()) = within(futures_util::future::join(stayer, both)).await;
    image.unwrap();
    assert_eq!(fake.requests("/manifests/").len(), 1);

    // All go: the work stops, and asking again begins anew.
    gate.send_replace(false);
    fake.put("app", "v2", &Recipe::new(own_architecture(), &[noise(7, 1000)]));
    let name = fake.name("app:v2");
    let before = fake.requests("").len();
    let only = Box::pin(ground.ensure(&name));
    tokio::select! {
        _ = only => panic!("the gate is closed"),
        () = async { while fake.requests("/blobs/").len() < 4 { tokio::task::yield_now().await } } => {}
    }
    let asked = fake.requests("").len();
    assert!(asked > before);
    gate.send_replace(true);
    within(ground.ensure(&name)).await.unwrap();
    assert!(fake.requests("/manifests/v2").len() == 2, "the work went on without anybody");
}

#[tokio::test]
async fn naming_somebodys_layer_is_not_having_it() {
    let private =
        Fake::start(Habits { account: Some(("owner".to_owned(), "pw".to_owned())), ..Habits::default() }).await;
    let secret = noise(5, 1000);
    private.put("app", "v1", &Recipe::new(own_architecture(), std::slice::from_ref(&secret)));
    let ground = Ground::new().await;
    ground.ensure_as(&private.name("app:v1"), "owner", "pw").await.unwrap();

    // A thief knows the diff id, and serves something else under it.
    let public = Fake::start(Habits::default()).await;
    public.put("theft", "v1", &Recipe::with(own_architecture(), &[digest(&secret)], vec![gzip(&noise(6, 1000))]));
    let error = ground.ensure(&public.name("theft:v1")).await.unwrap_err();
    assert!(matches!(&error, Error::Unpack { source: UnpackError::DiffId { .. }, .. }), "{error}");
    // Nor does a download that the owner began, and that is complete, help anybody else.
    let blob = gzip(&secret);
    let partial = ground.directory.path().join("store/partial");
    std::fs::write(partial.join(format!("{}-0000", hex(&blob))), &blob).unwrap();
    public.put("other", "v1", &Recipe::with(own_architecture(), &[digest(&secret)], vec![blob.clone()]));
    public.change(|habits| habits.corrupts = true);
    let error = ground.ensure(&public.name("other:v1")).await.unwrap_err();
    assert!(matches!(error, Error::DigestMismatch { .. }), "{error}");
    public.change(|habits| habits.corrupts = false);
    // One who has the content may use the layer, unpacked once.
    public.put("same", "v1", &Recipe::new(own_architecture(), std::slice::from_ref(&secret)));
    ground.ensure(&public.name("same:v1")).await.unwrap();
    assert_eq!(std::fs::read_dir(ground.layers()).unwrap().count(), 1);
}

#[tokio::test]
async fn redirects_go_to_encrypted_or_loopback_addresses_only() {
    let storage = Fake::start(Habits::default()).await;
    let recipe = recipe();
    let fake =
        Fake::start(Habits { redirects_to: Some("http://192.0.2.1/blob".to_owned()), ..Habits::default() }).await;
    fake.put("app", "v1", &recipe);
    let ground = Ground::new().await;
    let error = within(ground.ensure(&fake.name("app:v1"))).await.unwrap_err();
    assert!(chain(&error).contains("unencrypted"), "{}", chain(&error));
    let single = Recipe::with(own_architecture(), &[], vec![]);
    fake.put("empty", "v1", &single);
    storage.put_blob("x", &single.config);
    fake.change(|habits| {
        habits.redirects_to =
            Some(format!("http://{}/v2/x/blobs/{}?signature=abc", storage.host(), digest(&single.config)))
    });
    ground.ensure(&fake.name("empty:v1")).await.unwrap();
    assert_eq!(storage.requests("signature=abc").len(), 1);
}

#[tokio::test]
async fn each_refusal_says_what_it_is() {
    let fake = Fake::start(Habits::default()).await;
    let ground = Ground::new().await;
    let name = fake.name("app:v1");
    let manifest = |text: &str| fake.put_manifest("app", "v1", "application/json", text.as_bytes());
    let config = |media_type: &str| {
        format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"{media_type}","digest":"{}","size":2}},"layers":[]}}"#,
            digest(b"{}")
        )
    };
    manifest(r#"{"schemaVersion":1,"fsLayers":[]}"#);
    assert!(matches!(ground.ensure(&name).await.unwrap_err(), Error::MediaType { .. }));
    manifest(&config("application/vnd.cncf.helm.config.v1+json"));
    let error = ground.ensure(&name).await.unwrap_err();
    assert!(error.to_string().contains("helm") && error.to_string().contains("not a container image"), "{error}");
    manifest(r#"{"schemaVersion":2,"manifests":[],"layers":[]}"#);
    assert!(ground.ensure(&name).await.unwrap_err().to_string().contains("at once"));
    manifest("not json");
    assert!(matches!(ground.ensure(&name).await.unwrap_err(), Error::Malformed { .. }));
    manifest(&" ".repeat((4 << 20) + 1));
    assert!(matches!(ground.ensure(&name).await.unwrap_err(), Error::TooLarge { .. }));
    manifest(&config("").replace(&digest(b"{}"), "sha512:00"));
    assert!(matches!(ground.ensure(&name).await.unwrap_err(), Error::Malformed { .. }));
    manifest(&config(""));
    let error = ground.ensure(&name).await.unwrap_err();
    assert!(matches!(&error, Error::Registry { detail, .. } if detail.contains("not here")), "{error}");

    let answer =
        |status: StatusCode, body: &str| fake.change(|habits| habits.answers = Some((status, body.to_owned())));
    answer(StatusCode::TOO_MANY_REQUESTS, "");
    assert!(matches!(ground.ensure(&name).await.unwrap_err(), Error::RateLimited { .. }));
    answer(StatusCode::INTERNAL_SERVER_ERROR, r#"{"errors":[{"message":"out of\u001b[31m order"}]}"#);
    let error = ground.ensure(&name).await.unwrap_err().to_string();
    assert!(error.contains("out of") && !error.contains('\x1b'), "{error}");
    answer(StatusCode::UNAUTHORIZED, "");
    assert!(ground.ensure(&name).await.unwrap_err().to_string().contains("no way to authenticate"));

    for bad in ["", "host", "UPPER", "a:b:c", "a@sha256:1", "sha256:12", "a//b", "http://x/y", "x y", "-a", "a:-t"] {
        assert!(matches!(ground.ensure(bad).await.unwrap_err(), Error::Reference { .. }), "{bad:?}");
    }
    let error = ground.ensure("127.0.0.1:1/app").await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { .. }) && chain(&error).contains("refused"), "{}", chain(&error));
}
