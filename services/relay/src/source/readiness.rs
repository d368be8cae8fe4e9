//! Readiness over several sources: each check is well when it is well for every source.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use waybill_service::health::Check;

/// One check of the process, fed by all sources. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Readiness {
    check: Check,
    sources: Arc<Mutex<BTreeMap<String, Option<String>>>>,
}

impl Readiness {
    /// Failing until every one of the sources said that all is well.
    pub fn new<'a>(check: Check, sources: impl IntoIterator<Item = &'a str>) -> Self {
        let starting = |name: &str| (name.to_owned(), Some("starting".to_owned()));
        Self { check, sources: Arc::new(Mutex::new(sources.into_iter().map(starting).collect())) }
    }

    /// The state of one source: `None` is well. Returns whether it changed.
    pub fn set(&self, source: &str, problem: Option<String>) -> bool {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if sources.get(source) == Some(&problem) {
            return false;
        }
        sources.insert(source.to_owned(), problem);
        let problems: Vec<String> =
            sources.iter().filter_map(|(name, p)| p.as_ref().map(|p| format!("{name}: {p}"))).collect();
        if problems.is_empty() {
            self.check.ok()
        } else {
            self.check.failing(problems.join("; "))
        }
        true
    }
}
