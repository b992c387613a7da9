//! Lists of sandboxes: filtered, counted and paged in the database.

use lifecycle::state::State;
use sqlx::{QueryBuilder, Sqlite};

use super::rows::{LISTED, read};
use super::{Error, Row, Store, sql, to_its_end};

/// Which sandboxes a list shows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Any of these; empty means all. A word that is no state matches nothing.
    pub(crate) states: Option<Vec<State>>,
    /// All of these labels.
    pub(crate) metadata: Vec<(String, String)>,
}

/// One page of a list.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// Without receipt, layers and credentials.
    pub(crate) rows: Vec<Row>,
    pub(crate) total: u64,
}

impl Store {
    /// The `page`-th page (from 1) of `size` sandboxes, newest first, and how many there are in all.
    pub(crate) async fn list(&self, filter: Filter, page: u64, size: u64) -> Result<Page, Error> {
        let store = self.clone();
        to_its_end("list sandboxes", async move { store.list_now(&filter, page, size).await }).await
    }

    async fn list_now(&self, filter: &Filter, page: u64, size: u64) -> Result<Page, Error> {
        let op = sql("list sandboxes");
        // Both statements see one snapshot, so that the total belongs to the page.
        let mut tx = self.reader.begin().await.map_err(&op)?;
        let mut count = QueryBuilder::new("SELECT count(*) FROM sandboxes");
        restrict(&mut count, filter);
        let total: i64 = count.build_query_scalar().fetch_one(&mut *tx).await.map_err(&op)?;
        let offset = (page - 1).saturating_mul(size);
        let mut rows = Vec::new();
        if offset < total.unsigned_abs() {
            let mut query = QueryBuilder::<Sqlite>::new("SELECT ");
            query.push(LISTED).push(" FROM sandboxes");
            restrict(&mut query, filter);
            query.push(" ORDER BY created_at DESC, id DESC LIMIT ").push_bind(i64::try_from(size).unwrap_or(i64::MAX));
            query.push(" OFFSET ").push_bind(i64::try_from(offset).unwrap_or(i64::MAX));
            rows = query.build().fetch_all(&mut *tx).await.map_err(&op)?.iter().map(read).collect::<Result<_, _>>()?;
        }
        tx.commit().await.map_err(&op)?;
        Ok(Page { rows, total: total.unsigned_abs() })
    }
}

fn restrict(query: &mut QueryBuilder<Sqlite>, filter: &Filter) {
    query.push(" WHERE 1 = 1");
    if let Some(states) = &filter.states {
        query.push(" AND state IN (");
        let mut list = query.separated(", ");
        for state in states {
            list.push_bind(state.as_str());
        }
        query.push(")");
    }
    for (key, value) in &filter.metadata {
        query.push(" AND EXISTS (SELECT 1 FROM json_each(metadata) WHERE json_each.key = ");
        query.push_bind(key.clone()).push(" AND json_each.value = ").push_bind(value.clone()).push(")");
    }
}
