//! What becomes of a key when one of its rows is dead.

use std::collections::BTreeMap;
use std::str::FromStr;

/// See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Policy {
    /// Later rows of the key are held until an operator retries or skips the dead one.
    #[default]
    Block,
    /// The key goes on without the dead row: for topics whose events stand alone.
    Skip,
}

/// A policy, and exceptions by topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policies {
    default: Policy,
    topics: BTreeMap<String, Policy>,
}

impl Policies {
    /// The policy of a topic named with its prefix.
    pub fn of(&self, topic: &str, prefix: &str) -> Policy {
        let name = topic.strip_prefix(prefix).unwrap_or(topic);
        self.topics.get(name).copied().unwrap_or(self.default)
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "block" => Ok(Self::Block),
            "skip" => Ok(Self::Skip),
            other => Err(format!("{other:?} is neither block nor skip")),
        }
    }
}

impl FromStr for Policies {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut policies = Self::default();
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            match part.split_once('=') {
                None => policies.default = part.parse()?,
                Some((topic, policy)) => {
                    policies.topics.insert(topic.trim().to_owned(), policy.parse()?);
                }
            }
        }
        Ok(policies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_may_have_a_policy_of_its_own() {
        let policies: Policies = "block, audit.v1=skip".parse().expect("legal");
        assert_eq!(policies.of("t1.audit.v1", "t1."), Policy::Skip);
        assert_eq!(policies.of("t1.orders.v1", "t1."), Policy::Block);
        let other: Policies = "skip,orders.v1=block".parse().expect("legal");
        assert_eq!((other.of("orders.v1", ""), other.of("x", "")), (Policy::Block, Policy::Skip));
        assert!("block,audit.v1=".parse::<Policies>().is_err());
    }
}
