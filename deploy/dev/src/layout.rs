//! Where everything lies: the checkout and the folders below its `.dev/`.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use uuid::Uuid;

/// Which stack: the developer's, or the private one of the tests, which may run beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Space {
    /// `.dev/`
    Dev,
    /// `.dev/test/`
    Test,
}

/// A checkout.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    /// Its root, absolute and without symbolic links.
    pub(crate) root: PathBuf,
}

impl Workspace {
    /// The given root, or the nearest parent of the current folder that holds a cargo workspace.
    pub(crate) fn find(given: Option<PathBuf>) -> Result<Self> {
        let root = match given {
            Some(root) => root,
            None => {
                let here = env::current_dir().context("reading the current folder")?;
                match here.ancestors().find(|dir| is_workspace(dir)) {
                    Some(root) => root.to_path_buf(),
                    None => bail!("no cargo workspace in {} or above it; use --root", here.display()),
                }
            }
        };
        let root = fs::canonicalize(&root).with_context(|| format!("the root {}", root.display()))?;
        Ok(Self { root })
    }

    /// `.dev/`
    pub(crate) fn dev(&self) -> PathBuf {
        self.root.join(".dev")
    }

    /// The folder of one stack.
    pub(crate) fn state(&self, space: Space) -> State {
        let dir = match space {
            Space::Dev => self.dev(),
            Space::Test => self.dev().join("test"),
        };
        State { dir, space, workspace: self.clone() }
    }

    /// Where cargo puts debug binaries.
    pub(crate) fn binaries(&self) -> PathBuf {
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        self.root.join(target).join("debug")
    }

    /// The path of a binary of this workspace, or how to get it.
    pub(crate) fn binary(&self, name: &str) -> Result<PathBuf> {
        let path = self.binaries().join(name);
        if !path.is_file() {
            bail!("{} is not built; `cargo dev up` builds it", path.display());
        }
        Ok(path)
    }

    /// The development key pair and its JWKS.
    pub(crate) fn jwt(&self) -> PathBuf {
        self.dev().join("jwt")
    }

    /// Kafka's jars, shared by both stacks.
    pub(crate) fn jars(&self) -> PathBuf {
        self.dev().join("kafka/jars")
    }

    /// A random name that this checkout has given itself, by which it knows what it has made on servers that others
    /// use too. A path would not do: in containers all checkouts have the same.
    pub(crate) fn id(&self) -> Result<String> {
        let (dev, file) = (self.dev(), self.dev().join("id"));
        if !file.is_file() {
            fs::create_dir_all(&dev).with_context(|| format!("creating {}", dev.display()))?;
            let id = Uuid::new_v4().simple().to_string();
            let new = dev.join(format!("id.{id}"));
            fs::write(&new, &id[..12]).with_context(|| format!("writing {}", new.display()))?;
            // Whole or not at all; whoever was faster has named it.
            let _ = fs::hard_link(&new, &file);
            fs::remove_file(&new).with_context(|| format!("removing {}", new.display()))?;
        }
        fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))
    }

    /// A short name that differs between checkouts and is the same on every run.
    pub(crate) fn hash(&self) -> u32 {
        // FNV-1a: the value must not change with the compiler's version, as std's hasher may.
        self.root
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
    }
}

fn is_workspace(dir: &Path) -> bool {
    fs::read_to_string(dir.join("Cargo.toml"))
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "[workspace]"))
}

/// The folder of one stack, with the names of what is in it.
#[derive(Debug, Clone)]
pub(crate) struct State {
    /// `.dev` or `.dev/test`, absolute.
    pub(crate) dir: PathBuf,
    /// Whose it is.
    pub(crate) space: Space,
    /// The checkout it belongs to.
    pub(crate) workspace: Workspace,
}

impl State {
    /// Makes the folders.
    pub(crate) fn create(&self) -> Result<()> {
        let logs = self.logs();
        fs::create_dir_all(&logs).with_context(|| format!("creating {}", logs.display()))
    }

    /// Held by the supervisor as long as it lives.
    pub(crate) fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    /// What `status --json` prints.
    pub(crate) fn status(&self) -> PathBuf {
        self.dir.join("status.json")
    }

    /// The remembered ports.
    pub(crate) fn ports(&self) -> PathBuf {
        self.dir.join("ports.json")
    }

    /// All logs.
    pub(crate) fn logs(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// One log.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.logs().join(format!("{name}.log"))
    }

    /// PostgreSQL's folder; the cluster itself is `data` in it.
    pub(crate) fn postgres(&self) -> PathBuf {
        self.dir.join("postgres")
    }

    /// Kafka's folder; its log folder is `data` in it.
    pub(crate) fn kafka(&self) -> PathBuf {
        self.dir.join("kafka")
    }

    /// The compose project of this stack.
    pub(crate) fn project(&self) -> String {
        let suffix = match self.space {
            Space::Dev => "",
            Space::Test => "-test",
        };
        format!("waybill-{:08x}{suffix}", self.workspace.hash())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkouts_have_different_projects_and_the_same_checkout_the_same() {
        let of = |root: &str| Workspace { root: root.into() }.state(Space::Dev).project();
        assert_eq!(of("/a"), of("/a"));
        assert_ne!(of("/a"), of("/b"));
    }

    #[test]
    fn the_root_is_the_nearest_parent_with_a_workspace() {
        let found = Workspace::find(None).unwrap();
        assert!(found.root.join(".cargo/config.toml").is_file(), "{found:?}");
    }
}
