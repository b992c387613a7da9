use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use tempfile::TempDir;

use super::flight::Flights;
use super::prune::RECENT_USE;
use super::*;
use crate::unpack::Limits;
use crate::{InProcess, Progress};

async fn open(directory: &TempDir) -> Store {
    let unpacker = InProcess::open(&directory.path().join("layers"), Limits::default()).unwrap();
    Store::open(&directory.path().join("store"), Arc::new(unpacker)).await.unwrap()
}

async fn import(store: &Store, directory: &TempDir, content: &str, name: &str) -> Image {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    builder.append_data(&mut header, "file", content.as_bytes()).unwrap();
    let path = directory.path().join("import.tar");
    fs::write(&path, builder.into_inner().unwrap()).unwrap();
    store.import(&path, Some(name), &|_| {}).await.unwrap()
}

/// Makes a layer look as if nobody had asked for it for long.
fn forget(directory: &TempDir, layer: &LayerId) {
    let path = directory.path().join("store/layers").join(format!("{layer}.json"));
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - RECENT_USE * 2).unwrap();
}

fn layer_exists(directory: &TempDir, layer: &LayerId) -> bool {
    directory.path().join("layers").join(layer.as_str()).exists()
}

#[tokio::test]
async fn a_layer_goes_when_neither_image_nor_sandbox_needs_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).await;
    let image = import(&store, &directory, "a", "app").await;
    let layer = image.layers[0].clone();
    forget(&directory, &layer);
    assert_eq!(store.prune(&BTreeSet::new()).await.unwrap(), Pruned::default());

    let removed = store.remove("app").await.unwrap();
    assert_eq!(removed, Removed { references: vec!["docker.io/library/app:latest".to_owned()], image: Some(image.id) });
    assert!(layer_exists(&directory, &layer), "a removal must not pull a layer from under a sandbox");
    let in_use = BTreeSet::from([layer.clone()]);
    assert_eq!(store.prune(&in_use).await.unwrap().layers, []);

    let pruned = store.prune(&BTreeSet::new()).await.unwrap();
    assert_eq!((pruned.layers, pruned.bytes, pruned.layers_kept), (vec![layer.clone()], 1, 0));
    assert!(!layer_exists(&directory, &layer));
    assert!(matches!(store.remove("app").await.unwrap_err(), Error::NotLocal { .. }));
}

#[tokio::test]
async fn a_layer_that_was_just_asked_for_stays() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).await;
    let image = import(&store, &directory, "a", "app").await;
    forget(&directory, &image.layers[0]);
    store.ensure("app", EnsureOptions::default(), &|_| {}).await.unwrap();
    store.remove("app").await.unwrap();
    let pruned = store.prune(&BTreeSet::new()).await.unwrap();
    assert_eq!((pruned.layers.len(), pruned.layers_kept), (0, 1));
    assert!(layer_exists(&directory, &image.layers[0]));
}

#[tokio::test]
async fn a_layer_that_a_running_pull_needs_stays_and_a_dead_one_holds_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).await;
    let image = import(&store, &directory, "a", "app").await;
    store.remove("app").await.unwrap();
    forget(&directory, &image.layers[0]);
    let hold = store.shared.clone().hold(image.layers.clone()).await.unwrap();
    assert_eq!(store.prune(&BTreeSet::new()).await.unwrap().layers, []);
    drop(hold);
    // What a killed process leaves: the file, without the lock.
    fs::write(directory.path().join("store/holds/dead"), serde_json::to_vec(&image.layers).unwrap()).unwrap();
    assert_eq!(store.prune(&BTreeSet::new()).await.unwrap().layers, image.layers);
    assert_eq!(fs::read_dir(directory.path().join("store/holds")).unwrap().count(), 0);
}

#[tokio::test]
async fn an_image_without_its_layers_is_not_here() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).await;
    let image = import(&store, &directory, "a", "app").await;
    fs::remove_dir_all(directory.path().join("layers").join(image.layers[0].as_str())).unwrap();
    assert_eq!(store.resolve("app").await.unwrap(), None);
    assert_eq!(import(&store, &directory, "a", "app").await.id, image.id);
    assert!(store.resolve("app").await.unwrap().is_some());
}

#[tokio::test]
async fn images_share_layers_and_names_move() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).await;
    let first = import(&store, &directory, "a", "app:1").await;
    let same = import(&store, &directory, "a", "app:2").await;
    assert_eq!(first.id, same.id);
    assert_eq!(same.references, ["docker.io/library/app:1", "docker.io/library/app:2"]);
    assert_eq!(store.remove("app:1").await.unwrap().image, None);
    let moved = import(&store, &directory, "b", "app:2").await;
    assert_eq!(store.resolve("app:2").await.unwrap().unwrap().id, moved.id);
    // The old one has no name left, and goes with the next prune.
    assert_eq!(store.prune(&BTreeSet::new()).await.unwrap().images, [first.id]);
    let error = store.remove("sha256:000000000000").await.unwrap_err();
    assert!(matches!(error, Error::NotLocal { .. }), "{error}");
    let removed = store.remove(&moved.id[..19]).await.unwrap();
    assert_eq!((removed.references.len(), removed.image), (1, Some(moved.id)));
}

#[tokio::test]
async fn opening_sweeps_what_a_killed_process_left() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory).await;
    import(&store, &directory, "a", "app").await;
    let at = |name: &str| directory.path().join("store").join(name);
    for name in ["names/0123.new", "images/0123.new", "layers/0123.new", "blobs/0123.new"] {
        fs::write(at(name), "half").unwrap();
    }
    let (fresh, stale) = (at("partial/fresh"), at("partial/stale"));
    for path in [&fresh, &stale] {
        fs::write(path, "half").unwrap();
    }
    fs::File::options()
        .write(true)
        .open(&stale)
        .unwrap()
        .set_modified(SystemTime::now() - PARTIAL_LIFETIME * 2)
        .unwrap();
    let again = open(&directory).await;
    assert!(again.resolve("app").await.unwrap().is_some());
    for name in ["names", "images", "layers"] {
        assert_eq!(fs::read_dir(at(name)).unwrap().count(), 1, "{name}");
    }
    assert!(fresh.exists() && !stale.exists());
    // A prune takes every download that nobody is writing.
    assert_eq!(again.prune(&BTreeSet::new()).await.unwrap().bytes, 4);
    assert!(!fresh.exists());
}

#[tokio::test]
async fn the_directory_is_closed_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    open(&directory).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory.path().join("store")), 0o700);
    assert_eq!(mode(&directory.path().join("layers")), 0o700);
    assert_eq!(mode(&directory.path().join("store/key")), 0o600);
}

#[tokio::test]
async fn flights_share_failures_too_and_end_with_their_passengers() {
    let flights: Flights<&str, u32> = Flights::new();
    let begun = AtomicUsize::new(0);
    let fail = |_| -> crate::unpack::BoxFuture<'static, Result<u32, Error>> {
        begun.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {
            tokio::task::yield_now().await;
            Err(Error::NotLocal { reference: "x".to_owned() })
        })
    };
    let (first, second) = tokio::join!(flights.join("key", fail, &|_| {}), flights.join("key", fail, &|_| {}));
    assert!(first.is_err() && second.is_err());
    assert_eq!(begun.load(Ordering::Relaxed), 1);
    // The next one tries again.
    flights.join("key", fail, &|_| {}).await.unwrap_err();
    assert_eq!(begun.load(Ordering::Relaxed), 2);

    // A passenger who joins late is told where the work is.
    let (sender, wait) = tokio::sync::oneshot::channel::<()>();
    let begin = move |report: Arc<tokio::sync::watch::Sender<Progress>>| -> crate::unpack::BoxFuture<'static, Result<u32, Error>> {
        Box::pin(async move {
            report.send_replace(Progress { total_bytes: 7, ..Progress::default() });
            let _ = wait.await;
            Ok(1)
        })
    };
    let reports = Mutex::new(Vec::new());
    let early = flights.join("slow", begin, &|_| {});
    let late = async {
        tokio::task::yield_now().await;
        let begin = |_| -> crate::unpack::BoxFuture<'static, Result<u32, Error>> { panic!("it is under way") };
        let report = |progress: Progress| reports.lock().unwrap().push(progress.total_bytes);
        let joined = flights.join("slow", begin, &report);
        sender.send(()).unwrap();
        joined.await
    };
    let (early, late) = tokio::join!(early, late);
    assert_eq!((early.unwrap(), late.unwrap()), (1, 1));
    assert_eq!(reports.lock().unwrap().last(), Some(&7));
}
