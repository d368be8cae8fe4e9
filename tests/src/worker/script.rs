//! What befalls a message: a function of the seed, the group and the message, so that a seed can be had again.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use uuid::Uuid;

use super::Mode;

/// A way to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `Failure::Transient`.
    Transient,
    /// `Failure::Permanent`.
    Permanent,
    /// `Failure::Transient` before the transaction is used.
    RefusedForNow,
    /// `Failure::Permanent` before the transaction is used.
    Refused,
    /// A panic.
    Panic,
    /// A statement that the message's content makes fail: permanent.
    Statement,
    /// A statement that something else makes fail: transient.
    Missing,
    /// A failing statement whose error the handler forgets.
    Swallowed,
    /// It ends the process.
    Crash,
}

/// What befalls one message in one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Script {
    /// Fails so on its first attempts, this many of them; [`FOREVER`]: until it is repaired.
    pub fault: Option<(Fault, u32)>,
    /// Takes so long.
    pub slow: Option<Duration>,
    /// Its connection is ended, once in each process: a lost connection counts no attempt.
    pub cut: bool,
    /// Updates two rows that others update in the other order.
    pub clash: bool,
}

/// Until it is repaired.
pub const FOREVER: u32 = u32::MAX;

impl Script {
    /// Of a message that is known by its key and version.
    pub fn of(mode: Mode, seed: u64, group: &str, key: Uuid, version: i64, tiers: usize) -> Self {
        let mut dice = dice(seed, group, key, version);
        match mode {
            Mode::Chaos => chaos(&mut dice),
            Mode::Tiers if is_sick(key) => {
                let times = dice.random_range(1..=u32::try_from(tiers).unwrap_or(1).max(1));
                Self { fault: Some((Fault::Transient, times)), ..Self::default() }
            }
            Mode::Parked if is_sick(key) => {
                Self { fault: Some((Fault::Transient, FOREVER)), ..Self::default() }
            }
            Mode::Tiers | Mode::Outage | Mode::Parked => Self::default(),
        }
    }
}

/// Whether [`Mode::Tiers`] and [`Mode::Parked`] fail the messages of a key: of one in ten.
pub fn is_sick(key: Uuid) -> bool {
    key.as_u64_pair().1.is_multiple_of(10)
}

/// Nine in ten are well. What heals by itself and what must be repaired, errors of the handler and of the database.
fn chaos(dice: &mut StdRng) -> Script {
    let well = Script::default();
    let fails = |fault, times| Script { fault: Some((fault, times)), ..well };
    if dice.random_ratio(1, 5_000) {
        return fails(Fault::Crash, FOREVER);
    }
    match dice.random_range(0..1_000) {
        0..15 => fails(Fault::Transient, dice.random_range(1..=2)),
        15..30 => fails(Fault::RefusedForNow, dice.random_range(1..=2)),
        30..36 => fails(Fault::Transient, FOREVER),
        36..42 => fails(Fault::RefusedForNow, FOREVER),
        42..48 => fails(Fault::Permanent, FOREVER),
        48..54 => fails(Fault::Refused, FOREVER),
        54..59 => fails(Fault::Panic, FOREVER),
        59..67 => fails(Fault::Statement, FOREVER),
        67..75 => fails(Fault::Missing, dice.random_range(1..=3)),
        75..78 => fails(Fault::Swallowed, FOREVER),
        78..86 => Script { slow: Some(Duration::from_millis(dice.random_range(20..500))), ..well },
        86..90 => Script { cut: true, ..well },
        90..94 => Script { clash: true, ..well },
        _ => well,
    }
}

fn dice(seed: u64, group: &str, key: Uuid, version: i64) -> StdRng {
    // FNV-1a: the same in every build.
    let bytes = seed.to_le_bytes().into_iter().chain(group.bytes()).chain(key.into_bytes());
    let bytes = bytes.chain(version.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    StdRng::seed_from_u64(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_script_again_and_each_way_to_fail() {
        let key = Uuid::from_u128(7);
        let of = |version| Script::of(Mode::Chaos, 1, "loose", key, version, 3);
        let scripts: Vec<_> = (0..50_000).map(of).collect();
        assert_eq!(scripts, (0..50_000).map(of).collect::<Vec<_>>());
        for fault in [
            Fault::Transient,
            Fault::Permanent,
            Fault::RefusedForNow,
            Fault::Refused,
            Fault::Panic,
            Fault::Statement,
            Fault::Missing,
            Fault::Swallowed,
            Fault::Crash,
        ] {
            assert!(scripts.iter().any(|s| s.fault.is_some_and(|(f, _)| f == fault)), "{fault:?}");
        }
        assert!(scripts.iter().any(|s| s.cut) && scripts.iter().any(|s| s.clash));
        let well = scripts.iter().filter(|s| s.fault.is_none()).count();
        assert!((45_000..48_000).contains(&well), "{well}");
    }
}
