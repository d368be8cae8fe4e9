//! Bearer tokens: JWT, signed with ES256 or RS256, verified by a JSON Web Key Set.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::extract::{FromRef, FromRequestParts};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode, request::Parts};
use clap::Args;
use jsonwebtoken::jwk::JwkSet;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ConfigError;
use crate::http::ApiError;

/// A key set is fetched again for an unknown key id, at most once in this time.
const REFRESH: Duration = Duration::from_secs(30);
/// Difference of clocks that is forgiven, in seconds.
const LEEWAY: u64 = 30;

/// Where the public keys come from.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Config {
    /// File with the JSON Web Key Set that tokens are verified with.
    #[arg(long, env = "JWT_JWKS_FILE")]
    pub jwt_jwks_file: Option<PathBuf>,
    /// URL of the JSON Web Key Set, instead of a file; fetched at start, and again when a token names an unknown
    /// key.
    #[arg(long, env = "JWT_JWKS_URL")]
    pub jwt_jwks_url: Option<reqwest::Url>,
    /// Issuer that tokens must name. Without it any issuer that has the key is believed.
    #[arg(long, env = "JWT_ISSUER")]
    pub jwt_issuer: Option<String>,
    /// Audience that tokens must name. Without it tokens for other audiences are taken too.
    #[arg(long, env = "JWT_AUDIENCE")]
    pub jwt_audience: Option<String>,
}

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// A customer, for what is the customer's own.
    Customer,
    /// A person of the operations staff.
    Operator,
    /// Another service.
    Service,
}

/// One thing that operators may be allowed to do, from the token's claim `roles`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Look, payloads masked.
    View,
    /// See payloads.
    Payload,
    /// Change something: replay, archive, release, cancel.
    Act,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::View, Self::Payload, Self::Act];

    /// As in the claim.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Payload => "payload",
            Self::Act => "act",
        }
    }
}

/// A set of roles. Whoever has any may view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Roles(u8);

impl Roles {
    /// Looking only: what a token without the claim allows.
    pub const VIEW: Self = Self(1 << Role::View as u8);

    /// Whether the role is in the set.
    #[must_use]
    pub const fn has(self, role: Role) -> bool {
        self.0 & (1 << role as u8) != 0
    }

    /// The roles of the set by name.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Role::ALL.into_iter().filter(move |role| self.has(*role)).map(Role::name)
    }

    /// Of the claim: a list of words or one text of words; strangers mean nothing.
    fn of(claim: Option<&serde_json::Value>) -> Self {
        let Some(claim) = claim.filter(|claim| !claim.is_null()) else { return Self::VIEW };
        let words = claim.as_array().map_or_else(
            || claim.as_str().unwrap_or_default().split(' ').collect::<Vec<_>>(),
            |list| list.iter().filter_map(serde_json::Value::as_str).collect(),
        );
        Role::ALL.into_iter().filter(|role| words.contains(&role.name())).collect()
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        Self(roles.into_iter().fold(0, |set, role| set | (1 << role as u8) | Self::VIEW.0))
    }
}

/// Who calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Principal {
    /// Subject of the token: the customer's id.
    pub customer: Uuid,
    /// What the caller may do.
    pub scope: Scope,
    /// What the caller may do where operators work; means nothing for customers.
    pub roles: Roles,
}

/// Verifies bearer tokens. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Verifier(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    keys: RwLock<JwkSet>,
    url: Option<reqwest::Url>,
    refreshed: tokio::sync::Mutex<Instant>,
    issuer: Option<String>,
    audience: Option<String>,
}

#[derive(Deserialize)]
struct Claims {
    sub: Uuid,
    scope: String,
    // Any form: a customer's token may carry roles of somebody else's, which must not refuse it.
    #[serde(default)]
    roles: Option<serde_json::Value>,
}

impl Principal {
    /// Refuses a caller that has another scope.
    ///
    /// # Errors
    /// 403 `forbidden`.
    pub fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.scope == scope {
            return Ok(());
        }
        Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", "the token's scope does not allow this"))
    }

    /// Refuses customers, and staff without the role.
    ///
    /// # Errors
    /// 403 `forbidden`.
    pub fn require_role(&self, role: Role) -> Result<(), ApiError> {
        match self.scope {
            Scope::Operator | Scope::Service if self.roles.has(role) => Ok(()),
            Scope::Operator | Scope::Service => {
                let detail = format!("the token lacks the role {}", role.name());
                Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", detail))
            }
            Scope::Customer => self.require(Scope::Operator),
        }
    }
}

impl Verifier {
    /// Reads the key set.
    ///
    /// # Errors
    /// No place or two places given, an unreadable set, or a set without a usable key.
    pub async fn load(config: &Config) -> Result<Self, ConfigError> {
        let keys = match (&config.jwt_jwks_file, &config.jwt_jwks_url) {
            (Some(path), None) => {
                let named = |e: &dyn std::fmt::Display| {
                    ConfigError::invalid("JWT_JWKS_FILE", format_args!("{}: {e}", path.display()))
                };
                let text = tokio::fs::read_to_string(path).await.map_err(|e| named(&e))?;
                serde_json::from_str::<JwkSet>(&text).map_err(|e| named(&e))?
            }
            (None, Some(url)) => fetch(url)
                .await
                .map_err(|e| ConfigError::invalid("JWT_JWKS_URL", format_args!("{url}: {e}")))?,
            _ => {
                return Err(ConfigError::invalid(
                    "JWT_JWKS_FILE",
                    "give exactly one of JWT_JWKS_FILE and JWT_JWKS_URL",
                ));
            }
        };
        if keys.keys.is_empty() {
            return Err(ConfigError::invalid("JWT_JWKS_FILE", "the key set is empty"));
        }
        Ok(Self(Arc::new(Inner {
            keys: RwLock::new(keys),
            url: config.jwt_jwks_url.clone(),
            refreshed: tokio::sync::Mutex::new(Instant::now()),
            issuer: config.jwt_issuer.clone(),
            audience: config.jwt_audience.clone(),
        })))
    }

    /// Who a token speaks for.
    ///
    /// # Errors
    /// 401 `unauthorized`; the detail says what is wrong with the token, never what is in it.
    pub async fn verify(&self, token: &str) -> Result<Principal, ApiError> {
        let header = decode_header(token).map_err(|_| unauthorized("the token is not a JSON Web Token"))?;
        if !matches!(header.alg, Algorithm::ES256 | Algorithm::RS256) {
            return Err(unauthorized("the token is not signed with ES256 or RS256"));
        }
        let key = match self.key(header.kid.as_deref()) {
            Some(key) => key,
            None => {
                self.refresh().await;
                self.key(header.kid.as_deref()).ok_or_else(|| unauthorized("the token's key is not known"))?
            }
        };
        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        match &self.0.audience {
            Some(audience) => validation.set_audience(&[audience]),
            None => validation.validate_aud = false,
        }
        let mut required = vec!["exp", "sub"];
        if let Some(issuer) = &self.0.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        if self.0.audience.is_some() {
            required.push("aud");
        }
        validation.set_required_spec_claims(&required);
        let claims =
            decode::<Claims>(token, &key, &validation).map_err(|e| unauthorized(reason(e.kind())))?.claims;
        let scope = scope(&claims.scope).ok_or_else(|| unauthorized("the token's scope is not known"))?;
        Ok(Principal { customer: claims.sub, scope, roles: Roles::of(claims.roles.as_ref()) })
    }

    fn key(&self, kid: Option<&str>) -> Option<DecodingKey> {
        let keys = self.0.keys.read().unwrap_or_else(PoisonError::into_inner);
        let jwk = match kid {
            Some(kid) => keys.find(kid),
            None => keys.keys.first().filter(|_| keys.keys.len() == 1),
        };
        jwk.and_then(|jwk| DecodingKey::from_jwk(jwk).ok())
    }

    async fn refresh(&self) {
        let Some(url) = &self.0.url else { return };
        let mut refreshed = self.0.refreshed.lock().await;
        if refreshed.elapsed() < REFRESH {
            return;
        }
        *refreshed = Instant::now();
        match fetch(url).await {
            Ok(keys) if !keys.keys.is_empty() => {
                *self.0.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
            }
            Ok(_) => tracing::warn!(%url, "key set is empty; the old one stays"),
            Err(error) => tracing::warn!(%url, %error, "key set cannot be fetched; the old one stays"),
        }
    }
}

/// The one scope of ours in a space-separated list; more than one of ours is refused as ambiguous.
fn scope(text: &str) -> Option<Scope> {
    let mut ours = text.split(' ').filter_map(|word| match word {
        "customer" => Some(Scope::Customer),
        "operator" => Some(Scope::Operator),
        "service" => Some(Scope::Service),
        _ => None,
    });
    ours.next().filter(|_| ours.next().is_none())
}

async fn fetch(url: &reqwest::Url) -> Result<JwkSet, reqwest::Error> {
    let client = reqwest::Client::builder().timeout(Duration::from_secs(5)).build()?;
    client.get(url.clone()).send().await?.error_for_status()?.json().await
}

fn reason(kind: &jsonwebtoken::errors::ErrorKind) -> &'static str {
    use jsonwebtoken::errors::ErrorKind;
    match kind {
        ErrorKind::ExpiredSignature => "the token has expired",
        ErrorKind::ImmatureSignature => "the token is not valid yet",
        ErrorKind::InvalidIssuer => "the token's issuer is not ours",
        ErrorKind::InvalidAudience => "the token's audience is not ours",
        ErrorKind::MissingRequiredClaim(_) => "the token lacks a required claim",
        ErrorKind::Json(_) => "the token's claims are not ours: sub must be a UUID and scope a string",
        _ => "the token's signature does not fit",
    }
}

fn unauthorized(detail: &'static str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
        .header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
}

impl<S> FromRequestParts<S> for Principal
where
    Verifier: FromRef<S>,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        // Known already where the service's door asked; a request cannot bring an extension.
        if let Some(principal) = parts.extensions.get::<Self>() {
            return Ok(*principal);
        }
        let mut headers = parts.headers.get_all(AUTHORIZATION).iter();
        let header = headers.next().ok_or_else(|| unauthorized("a bearer token is required"))?;
        if headers.next().is_some() {
            return Err(unauthorized("the Authorization header is given more than once"));
        }
        let text = header.to_str().map_err(|_| unauthorized("the Authorization header is not text"))?;
        let token = match text.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => return Err(unauthorized("the Authorization header is not a bearer token")),
        };
        Verifier::from_ref(state).verify(token).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_scope_of_ours_is_taken() {
        assert_eq!(scope("openid customer"), Some(Scope::Customer));
        assert_eq!(scope("service"), Some(Scope::Service));
        assert_eq!(scope("openid"), None);
        assert_eq!(scope("customer operator"), None);
        assert_eq!(scope(""), None);
    }

    #[test]
    fn roles_are_read_from_any_form_and_strangers_mean_nothing() {
        let names = |claim: serde_json::Value| Roles::of(Some(&claim)).names().collect::<Vec<_>>();
        assert_eq!(Roles::of(None), Roles::VIEW);
        assert_eq!(names(serde_json::json!(null)), ["view"]);
        assert_eq!(names(serde_json::json!([])), [""; 0]);
        assert_eq!(names(serde_json::json!(["act", "admin", 7])), ["view", "act"]);
        assert_eq!(names(serde_json::json!("payload view")), ["view", "payload"]);
        assert_eq!(names(serde_json::json!({"view": true})), [""; 0]);
    }

    #[test]
    fn a_role_is_of_use_to_staff_only() {
        let roles = Role::ALL.into_iter().collect();
        let may =
            |scope, roles, role| Principal { customer: Uuid::nil(), scope, roles }.require_role(role).is_ok();
        assert!(may(Scope::Operator, roles, Role::Act) && may(Scope::Service, roles, Role::Payload));
        assert!(!may(Scope::Customer, roles, Role::View));
        assert!(may(Scope::Operator, Roles::VIEW, Role::View));
        assert!(!may(Scope::Operator, Roles::VIEW, Role::Act));
        assert!(!may(Scope::Operator, Roles::default(), Role::View));
    }
}
