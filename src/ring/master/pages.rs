//! The pages of each stream, which batches and moves change.

use super::Master;
use crate::ring::Rows;

impl Master {
    /// The batch that is begun has the pages that it needs.
    pub(super) fn change_pages(&mut self, rows: &mut impl Rows) {
        for page in self.course.keeps() {
            assert!(rows.keep(page, &self.options.sizes), "there is no {page:?}");
        }
        for page in self.course.pages() {
            self.pages.tables.apply(page);
            assert!(rows.set_page(page, &self.options.sizes), "there is no {page:?}");
        }
        if self.nodes.lines.len() > 1 {
            self.pages.out.keep(self.course.keeps());
            self.pages.out.add(self.course.pages().iter().copied());
        }
    }

    /// Sends the page tables after layers have moved: this node's streams have no pages yet, and neither do
    /// those of new nodes.
    pub(super) fn tell_tables(&mut self, rows: &mut impl Rows) {
        for page in self.pages.tables.all() {
            assert!(rows.set_page(&page, &self.options.sizes), "there is no {page:?}");
        }
        if self.nodes.lines.len() > 1 {
            self.pages.out.add(self.pages.tables.all());
        }
    }

    /// Drops all streams, whose KV the nodes have lost.
    pub(super) fn drop_streams(&mut self) {
        let is_lost = self.course.drop_streams();
        self.group.setbacks.streams_lost += u64::from(is_lost);
        self.is_lost |= is_lost;
        self.pages.tables.clear();
    }
}
