//! Watches that acknowledgements of a key never go backwards. No I/O.

use std::collections::HashMap;
use std::sync::Arc;

use super::row::Key;

/// Keys remembered, twice over.
const MOST: usize = 10_000;

/// The last acknowledged `seq` of recent keys.
#[derive(Debug, Default)]
pub(crate) struct Order {
    young: HashMap<Arc<Key>, i64>,
    old: HashMap<Arc<Key>, i64>,
}

impl Order {
    /// Notes an acknowledgement; false when a later row of the key was acknowledged before.
    pub(crate) fn note(&mut self, key: &Arc<Key>, seq: i64) -> bool {
        if self.young.len() >= MOST {
            self.old = std::mem::take(&mut self.young);
        }
        let last = self.young.get(key).or_else(|| self.old.get(key)).copied();
        if last.is_some_and(|last| seq < last) {
            return false;
        }
        self.young.insert(key.clone(), seq);
        true
    }

    /// Rows of unknown fate will be sent again: what was seen says nothing about them.
    pub(crate) fn forget(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_backwards_is_noticed_also_after_many_other_keys() {
        let key = |name: &str| Arc::new(Key { topic: "t".into(), key: name.to_owned() });
        let mut order = Order::default();
        assert!(order.note(&key("a"), 2) && order.note(&key("b"), 1) && order.note(&key("a"), 2));
        for n in 0..MOST {
            assert!(order.note(&key(&n.to_string()), 3));
        }
        assert!(!order.note(&key("a"), 1));
    }
}
