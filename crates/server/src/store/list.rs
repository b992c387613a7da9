//! Lists: filtered, counted and paged in the database.

use lifecycle::state::State;
use sqlx::sqlite::SqliteRow;
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
pub(crate) struct Page<T> {
    pub(crate) rows: Vec<T>,
    pub(crate) total: u64,
}

/// What a list is of.
pub(super) struct Listed<T> {
    /// What a failure was about.
    pub(super) op: &'static str,
    pub(super) table: &'static str,
    pub(super) columns: &'static str,
    pub(super) read: fn(&SqliteRow) -> Result<T, Error>,
}

impl Store {
    /// The `page`-th page (from 1) of `size` sandboxes, newest first, and how many there are in all. The rows are without
    /// receipt, layers and credentials.
    pub(crate) async fn list(&self, filter: Filter, page: u64, size: u64) -> Result<Page<Row>, Error> {
        let store = self.clone();
        let of = Listed { op: "list sandboxes", table: "sandboxes", columns: LISTED, read };
        to_its_end(of.op, async move { store.page(&of, |query| restrict(query, &filter), page, size).await }).await
    }

    /// The `page`-th page (from 1) of `size` rows, newest first, and how many there are in all.
    pub(super) async fn page<T>(
        &self,
        of: &Listed<T>,
        restrict: impl Fn(&mut QueryBuilder<Sqlite>),
        page: u64,
        size: u64,
    ) -> Result<Page<T>, Error> {
        let op = sql(of.op);
        // Both statements see one state, so that the total belongs to the page.
        let mut tx = self.reader.begin().await.map_err(&op)?;
        let mut count = QueryBuilder::new("SELECT count(*) FROM ");
        count.push(of.table);
        restrict(&mut count);
        let total: i64 = count.build_query_scalar().fetch_one(&mut *tx).await.map_err(&op)?;
        let offset = (page - 1).saturating_mul(size);
        let mut rows = Vec::new();
        if offset < total.unsigned_abs() {
            let mut query = QueryBuilder::<Sqlite>::new("SELECT ");
            query.push(of.columns).push(" FROM ").push(of.table);
            restrict(&mut query);
            query.push(" ORDER BY created_at DESC, id DESC LIMIT ").push_bind(i64::try_from(size).unwrap_or(i64::MAX));
            query.push(" OFFSET ").push_bind(i64::try_from(offset).unwrap_or(i64::MAX));
            let found = query.build().fetch_all(&mut *tx).await.map_err(&op)?;
            rows = found.iter().map(of.read).collect::<Result<_, _>>()?;
        }
        tx.commit().await.map_err(&op)?;
        Ok(Page { rows, total: total.unsigned_abs() })
    }
}

/// Adds that the state must be one of these; none match none.
pub(super) fn only_states(query: &mut QueryBuilder<Sqlite>, states: impl Iterator<Item = &'static str>) {
    query.push(" AND state IN (");
    let mut list = query.separated(", ");
    for state in states {
        list.push_bind(state);
    }
    query.push(")");
}

fn restrict(query: &mut QueryBuilder<Sqlite>, filter: &Filter) {
    query.push(" WHERE 1 = 1");
    if let Some(states) = &filter.states {
        only_states(query, states.iter().map(|state| state.as_str()));
    }
    for (key, value) in &filter.metadata {
        query.push(" AND EXISTS (SELECT 1 FROM json_each(metadata) WHERE json_each.key = ");
        query.push_bind(key.clone()).push(" AND json_each.value = ").push_bind(value.clone()).push(")");
    }
}
