//! Which page of a list is asked for, and what is told of it.

use protocol::lifecycle::PaginationInfo;

use super::query::Query;
use crate::errors::ApiError;

/// Items in one page (published).
const MAX_SIZE: u64 = 200;
/// Items in a page for which no size is asked (published).
const DEFAULT_SIZE: u64 = 20;
/// Largest page number that is read; beyond it no list goes.
const MAX_PAGE: u64 = i64::MAX as u64;

/// A page of a list.
#[derive(Clone, Copy)]
pub(super) struct Page {
    /// Which one, from 1.
    pub(super) number: u64,
    /// Most items on it.
    pub(super) size: u64,
}

impl Page {
    /// The one that `page` and `pageSize` ask for.
    pub(super) fn of(query: &Query) -> Result<Self, ApiError> {
        let number = query.number("page", 1..=MAX_PAGE, 1)?;
        Ok(Self { number, size: query.number("pageSize", 1..=MAX_SIZE, DEFAULT_SIZE)? })
    }

    /// What is told beside the items, when there are so many in all.
    pub(super) fn info(self, total_items: u64) -> PaginationInfo {
        let total_pages = total_items.div_ceil(self.size);
        let has_next_page = self.number < total_pages;
        PaginationInfo { page: self.number, page_size: self.size, total_items, total_pages, has_next_page }
    }
}
