//! Bearer tokens.

use uuid::Uuid;
use waybill_service::auth::{Config, Scope, Verifier};
use waybill_testkit::jwt::Issuer;

fn config(issuer: &Issuer) -> Config {
    Config {
        jwt_jwks_file: Some(issuer.jwks_file()),
        jwt_jwks_url: None,
        jwt_issuer: None,
        jwt_audience: None,
    }
}

#[tokio::test]
async fn a_good_token_names_its_principal() {
    let issuer = Issuer::new();
    let verifier = Verifier::load(&config(&issuer)).await.expect("key set");
    let customer = Uuid::now_v7();
    for (scope, expected) in
        [("customer", Scope::Customer), ("operator", Scope::Operator), ("service", Scope::Service)]
    {
        let principal = verifier.verify(&issuer.token(customer, scope)).await.expect("good");
        assert_eq!((principal.customer, principal.scope), (customer, expected));
        assert_eq!(principal.require(Scope::Operator).is_ok(), expected == Scope::Operator);
    }
}

#[tokio::test]
async fn every_other_token_is_refused_for_its_reason() {
    let (issuer, stranger) = (Issuer::new(), Issuer::new());
    let verifier = Verifier::load(&config(&issuer)).await.expect("key set");
    let customer = Uuid::now_v7();
    let good = issuer.token(customer, "customer");
    let mut parts: Vec<&str> = good.split('.').collect();
    let other = issuer.token(Uuid::now_v7(), "customer");
    parts[1] = other.split('.').nth(1).expect("claims");
    let none = format!("{}.{}.", "eyJhbGciOiJub25lIn0", parts[1]);
    for (token, reason) in [
        (issuer.token_for(customer, "customer", -3600), "expired"),
        (stranger.token(customer, "customer"), "key is not known"),
        (issuer.token(customer, "admin"), "scope"),
        (parts.join("."), "signature"),
        (none, "not a JSON Web Token"),
        ("garbage".to_owned(), "not a JSON Web Token"),
        (String::new(), "not a JSON Web Token"),
    ] {
        let error = verifier.verify(&token).await.expect_err(reason);
        assert_eq!((error.status().as_u16(), error.code()), (401, "unauthorized"), "{reason}");
        assert!(error.detail().contains(reason), "{reason}: {}", error.detail());
    }
}

#[tokio::test]
async fn the_key_set_can_be_fetched() {
    let issuer = Issuer::new();
    let text = std::fs::read_to_string(issuer.jwks_file()).expect("key set");
    let router = axum::Router::new().route("/jwks", axum::routing::get(async move || text));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let url = format!("http://{}/jwks", listener.local_addr().expect("bound"));
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let mut config = config(&issuer);
    (config.jwt_jwks_file, config.jwt_jwks_url) = (None, Some(url.parse().expect("URL")));
    let verifier = Verifier::load(&config).await.expect("fetched");
    assert!(verifier.verify(&issuer.token(Uuid::now_v7(), "service")).await.is_ok());
    server.abort();
}

#[tokio::test]
async fn issuer_and_audience_are_demanded_when_set() {
    let issuer = Issuer::new();
    for (name, audience) in [(Some("https://id.example"), None), (None, Some("waybill"))] {
        let mut config = config(&issuer);
        (config.jwt_issuer, config.jwt_audience) = (name.map(String::from), audience.map(String::from));
        let verifier = Verifier::load(&config).await.expect("key set");
        // The issuer of the testkit names neither.
        assert_eq!(
            verifier.verify(&issuer.token(Uuid::now_v7(), "customer")).await.expect_err("lacks it").code(),
            "unauthorized"
        );
    }
}

#[tokio::test]
async fn an_unusable_key_set_is_named() {
    let issuer = Issuer::new();
    let folder = tempfile::tempdir().expect("folder");
    let broken = folder.path().join("jwks.json");
    for (content, names) in
        [(Some("{"), "JWT_JWKS_FILE"), (Some(r#"{"keys":[]}"#), "empty"), (None, "jwks.json")]
    {
        match content {
            Some(content) => std::fs::write(&broken, content).expect("writes"),
            None => std::fs::remove_file(&broken).expect("removes"),
        }
        let mut config = config(&issuer);
        config.jwt_jwks_file = Some(broken.clone());
        let error = Verifier::load(&config).await.expect_err(names).to_string();
        assert!(error.contains("JWT_JWKS_FILE") && error.contains(names), "{error}");
    }
}
