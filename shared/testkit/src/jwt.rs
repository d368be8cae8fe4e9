//! An issuer of bearer tokens with a key of its own.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde::Serialize;
use uuid::Uuid;

/// Signs tokens with ES256.
#[derive(Debug)]
pub struct Issuer {
    private: Vec<u8>,
    kid: String,
    folder: Option<tempfile::TempDir>,
}

#[derive(Serialize)]
struct Claims<'a> {
    sub: Uuid,
    scope: &'a str,
    iat: u64,
    exp: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    roles: Option<&'a [&'a str]>,
}

const PRIVATE_KEY: &str = "private.der";
const KEY_SET: &str = "jwks.json";

impl Issuer {
    /// An issuer with a fresh key whose key set lies in a temporary folder.
    ///
    /// # Panics
    /// When the folder cannot be written.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut issuer = Self::generate(folder.path()).expect("fresh key");
        issuer.folder = Some(folder);
        issuer
    }

    /// Makes a key and writes it with its key set into a folder, readable by the owner only.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn generate(folder: &Path) -> anyhow::Result<Self> {
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .map_err(|_| anyhow::anyhow!("no key could be made"))?;
        let issuer = Self { private: key.as_ref().to_vec(), kid: Uuid::new_v4().to_string(), folder: None };
        let mut jwk = Jwk::from_encoding_key(&issuer.encoding_key(), Algorithm::ES256)?;
        jwk.common.key_id = Some(issuer.kid.clone());
        jwk.common.public_key_use = Some(PublicKeyUse::Signature);
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        write_private(&folder.join(PRIVATE_KEY), &issuer.private)?;
        std::fs::write(folder.join(KEY_SET), serde_json::to_vec_pretty(&JwkSet { keys: vec![jwk] })?)?;
        Ok(issuer)
    }

    /// The issuer whose files [`Issuer::generate`] wrote.
    ///
    /// # Errors
    /// The folder lacks them or they cannot be read.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let read = |name| {
            let path = folder.join(name);
            std::fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))
        };
        let keys: JwkSet = serde_json::from_slice(&read(KEY_SET)?).context("the key set cannot be read")?;
        let kid =
            keys.keys.first().and_then(|k| k.common.key_id.clone()).context("the key set has no key id")?;
        Ok(Self { private: read(PRIVATE_KEY)?, kid, folder: None })
    }

    /// File of the key set, for `JWT_JWKS_FILE`.
    ///
    /// # Panics
    /// For an issuer that was opened from, or generated into, a folder of the caller's.
    pub fn jwks_file(&self) -> PathBuf {
        self.folder.as_ref().expect("an issuer of Issuer::new").path().join(KEY_SET)
    }

    /// A token for a customer that is good for an hour.
    pub fn token(&self, customer: Uuid, scope: &str) -> String {
        self.token_for(customer, scope, 3600)
    }

    /// A token that ends in `seconds` from now; a negative number has ended already.
    ///
    /// # Panics
    /// When the key cannot sign.
    pub fn token_for(&self, customer: Uuid, scope: &str, seconds: i64) -> String {
        self.sign(customer, scope, None, seconds)
    }

    /// A token of the operations staff with these roles (`view`, `payload`, `act`), good for an hour.
    pub fn operator(&self, subject: Uuid, roles: &[&str]) -> String {
        self.sign(subject, "operator", Some(roles), 3600)
    }

    /// A token with the claim `roles`, or without it; `seconds` as in [`Issuer::token_for`].
    ///
    /// # Panics
    /// When the key cannot sign.
    pub fn sign(&self, subject: Uuid, scope: &str, roles: Option<&[&str]>, seconds: i64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let claims = Claims { sub: subject, scope, iat: now, exp: now.saturating_add_signed(seconds), roles };
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.kid.clone());
        encode(&header, &claims, &self.encoding_key()).expect("signs")
    }

    fn encoding_key(&self) -> EncodingKey {
        EncodingKey::from_ec_der(&self.private)
    }
}

impl Default for Issuer {
    fn default() -> Self {
        Self::new()
    }
}

fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    Ok(())
}
