//! How long an unknown schema is waited for.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Schemas remembered at most; noise that looks like ever new schemas must not fill the memory.
const REMEMBERED: usize = 64;

/// Counts per schema and not per message: a release that never comes costs a partition the wait once.
#[derive(Debug)]
pub(crate) struct Patience {
    limit: Duration,
    first_seen: HashMap<String, Instant>,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, first_seen: HashMap::new() }
    }

    /// Whether this schema has been waited for long enough; the first look starts the wait.
    pub(super) fn is_over(&mut self, schema: &str) -> bool {
        if let Some(seen) = self.first_seen.get(schema) {
            return seen.elapsed() >= self.limit;
        }
        if self.first_seen.len() == REMEMBERED {
            self.first_seen.clear();
        }
        self.first_seen.insert(schema.to_owned(), Instant::now());
        self.limit.is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_schema_has_its_own_wait_and_has_it_once() {
        let mut patience = Patience::new(Duration::from_secs(3_600));
        assert!(!patience.is_over("a"));
        let long_ago = Instant::now().checked_sub(Duration::from_secs(7_200)).unwrap();
        patience.first_seen.insert("a".to_owned(), long_ago);
        assert!(patience.is_over("a") && patience.is_over("a"));
        assert!(!patience.is_over("b"));
    }

    #[test]
    fn ever_new_schemas_do_not_fill_the_memory() {
        let mut patience = Patience::new(Duration::from_secs(3_600));
        for number in 0..1_000 {
            patience.is_over(&number.to_string());
        }
        assert!(patience.first_seen.len() <= REMEMBERED);
    }
}
