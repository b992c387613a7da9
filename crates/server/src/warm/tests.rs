use std::collections::HashSet;

use super::*;

fn spec() -> SandboxSpec {
    serde_json::from_value(serde_json::json!({
        "image": "host", "private_pull": false, "platform": null, "entrypoint": ["true"], "env": {}, "limits": {},
        "metadata": {}, "extensions": {}, "timeout_seconds": null,
    }))
    .expect("a specification")
}

fn kind() -> Kind {
    Kind::new("host")
}

/// A pool of which so many wait.
fn pool(ready: usize, most: u32, when_empty: WhenEmpty) -> Arc<Warm> {
    let warm = Warm::new(0, Duration::from_millis(20));
    let row = PoolRow {
        name: "p".to_owned(),
        template: serde_json::Map::new(),
        capacity: Capacity { buffer_max: 1, buffer_min: 1, pool_max: most, pool_min: 0 },
        when_empty,
        revision: 1,
        created_at: jiff::Timestamp::now(),
    };
    warm.open(&row, CreateSandboxRequest::default(), kind(), spec(), HashSet::new());
    let mut inner = warm.lock();
    for _ in 0..ready {
        let id = new_id();
        inner.known.insert(id.clone());
        inner.groups.get_mut(&Name::Pool("p".to_owned())).expect("a pool").ready.push_back(id);
    }
    drop(inner);
    warm
}

async fn take(warm: &Arc<Warm>) -> Result<Place, ApiError> {
    warm.take_from("p", Some(&kind()), warm.until()).await
}

#[tokio::test]
async fn a_place_that_is_not_used_goes_back_as_it_was() {
    let warm = pool(1, 5, WhenEmpty::Create);
    let place = take(&warm).await.expect("a place");
    let id = place.id().clone();
    assert_eq!(warm.status("p").map(|status| (status.available, status.allocated)), Some((0, 1)));
    drop(place);
    assert_eq!(warm.status("p").map(|status| (status.available, status.allocated)), Some((1, 0)));
    assert!(warm.knows(&id));
    assert_eq!(*take(&warm).await.expect("a place").id(), id);
}

#[tokio::test]
async fn an_id_is_known_until_somebody_else_answers_for_it() {
    let warm = pool(0, 5, WhenEmpty::Create);
    let place = take(&warm).await.expect("a place");
    let id = place.id().clone();
    assert!(warm.knows(&id), "an orphan hunt in between would end it");
    place.use_up();
    assert!(!warm.knows(&id));
    assert_eq!(warm.status("p").map(|status| status.allocated), Some(1));
    warm.ended(&id, Some("p"));
    assert_eq!(warm.status("p").map(|status| status.allocated), Some(0));
}

#[tokio::test]
async fn a_pool_that_closes_leaves_its_places_to_be_removed() {
    let warm = pool(2, 5, WhenEmpty::Create);
    let place = take(&warm).await.expect("a place");
    let taken = place.id().clone();
    warm.close("p");
    drop(place);
    let doomed = warm.lock().doomed.clone();
    assert_eq!(doomed.len(), 2);
    assert!(doomed.contains(&taken));
    assert_eq!(take(&warm).await.err().map(|error| error.status.as_u16()), Some(404));
}

#[tokio::test]
async fn a_place_of_a_pool_that_was_made_again_is_none_of_its_successor() {
    let warm = pool(1, 5, WhenEmpty::Create);
    let place = take(&warm).await.expect("a place");
    let id = place.id().clone();
    warm.close("p");
    let row = PoolRow {
        name: "p".to_owned(),
        template: serde_json::Map::new(),
        capacity: Capacity { buffer_max: 1, buffer_min: 1, pool_max: 5, pool_min: 0 },
        when_empty: WhenEmpty::Create,
        revision: 1,
        created_at: jiff::Timestamp::now(),
    };
    warm.open(&row, CreateSandboxRequest::default(), Kind::new("another"), spec(), HashSet::new());
    drop(place);
    assert_eq!(warm.status("p").map(|status| status.available), Some(0));
    assert_eq!(warm.lock().doomed, [id]);
}

#[tokio::test]
async fn a_strict_pool_makes_none_in_the_stead_of_one_that_waits() {
    let warm = pool(0, 5, WhenEmpty::Refuse);
    assert_eq!(take(&warm).await.err().map(|error| error.status.as_u16()), Some(429));
    // Another kind never waits there: it is made, or nobody would ever get it.
    let other = warm.take_from("p", None, warm.until()).await;
    assert!(other.is_ok());
}

#[test]
fn taking_costs_the_same_from_one_and_from_a_thousand() {
    // Counted and not timed: each look is one pop and a few map entries, whatever is in them.
    let warm = pool(1000, 2000, WhenEmpty::Create);
    let names: HashSet<SandboxId> = (0..1000)
        .map(|_| match warm.ask("p", Some(&kind()), false) {
            Asked::Place(place) => {
                let id = place.id().clone();
                place.use_up();
                id
            }
            _ => panic!("one waits"),
        })
        .collect();
    assert_eq!(names.len(), 1000);
    assert_eq!(warm.status("p").map(|status| (status.available, status.hits)), Some((0, 1000)));
}

#[test]
fn numbers_of_a_pool_read_back() {
    let capacity = Capacity { buffer_max: 4, buffer_min: 1, pool_max: 9, pool_min: 2 };
    assert_eq!(capacity_of(&capacity_text(&capacity)), Some(capacity));
    assert_eq!(capacity_of("1 2 3"), None);
}

#[test]
fn a_claim_is_timed_and_counted_against_its_stock() {
    let warm = pool(1, 5, WhenEmpty::Create);
    let Asked::Place(place) = warm.ask("p", Some(&kind()), false) else { panic!("one waits") };
    let id = place.id().clone();
    place.use_up();
    warm.made(&id, None, spec);
    let status = warm.status("p").expect("a pool");
    assert!(status.claim_ms.is_some_and(|ms| (0.0..1000.0).contains(&ms)), "{status:?}");
    assert!(warm.lock().claims.is_empty());
    let text = warm.text();
    assert!(text.contains("pool_claim_seconds_count{pool=\"p\"} 1"), "{text}");
}
