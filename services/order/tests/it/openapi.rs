use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::Value;

use crate::app::{TestApp, send};

/// Every route that the description must have.
const OPERATIONS: [(&str, &str); 9] = [
    ("get", "/healthz"),
    ("get", "/openapi.json"),
    ("get", "/problems"),
    ("get", "/problems/{slug}"),
    ("get", "/readyz"),
    ("get", "/v1/orders"),
    ("get", "/v1/orders/{id}"),
    ("get", "/v1/products"),
    ("post", "/v1/orders"),
];

async fn description(app: &TestApp) -> Value {
    let answer = send(app.client.get(format!("{}/openapi.json", app.base))).await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, Some("application/json")));
    answer.json()
}

fn operations(description: &Value) -> BTreeSet<(String, String)> {
    let paths = description["paths"].as_object().expect("paths");
    let of = |(path, item): (&String, &Value)| {
        let methods = item.as_object().expect("operations").keys().cloned().collect::<Vec<_>>();
        methods.into_iter().map(|method| (method, path.clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of).collect()
}

#[tokio::test]
async fn every_route_is_described_and_nothing_else() {
    let app = TestApp::start().await;
    let described = operations(&description(&app).await);
    let expected = OPERATIONS.map(|(method, path)| (method.to_owned(), path.to_owned()));
    assert_eq!(described, BTreeSet::from(expected));
    // Each path takes the methods that are described, and says so to the others.
    for (_, path) in OPERATIONS {
        let methods: BTreeSet<_> =
            described.iter().filter(|(_, p)| p == path).map(|(method, _)| method.to_uppercase()).collect();
        let real = path.replace("{id}", "0199f2a4-7c2e-7b7e-8a55-6f1d2c3b4a59").replace("{slug}", "none");
        let refused = send(app.request(Method::PATCH, &real)).await;
        refused.problem(405, "method-not-allowed");
        let allowed: BTreeSet<_> =
            refused.header("allow").expect("Allow").split(',').map(str::to_owned).collect();
        // GET brings HEAD.
        assert_eq!(&allowed - &methods, BTreeSet::from(["HEAD".to_owned()]), "{path}");
        for method in methods {
            let answer = send(app.request(method.parse().expect("method"), &real)).await;
            assert_ne!(answer.status, 405, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn every_answer_of_the_description_has_its_parts() {
    let app = TestApp::start().await;
    let description = description(&app).await;
    for (method, path) in operations(&description) {
        let operation = &description["paths"][&path][&method];
        let guarded = path.starts_with("/v1/");
        assert_eq!(operation["security"].is_array(), guarded, "{path}");
        assert!(
            operation["summary"].is_string() && operation["operationId"].is_string(),
            "{path}: {operation}"
        );
        for (status, answer) in operation["responses"].as_object().expect("responses") {
            assert!(answer["headers"]["X-Request-Id"].is_object(), "{method} {path} {status}");
            let failure = &answer["content"]["application/problem+json"];
            if status.starts_with(['4', '5']) && path != "/readyz" {
                assert_eq!(failure["schema"]["$ref"], "#/components/schemas/Problem", "{path} {status}");
                let examples = failure["examples"].as_object().expect("examples");
                assert!(
                    examples.values().all(|e| e["value"]["status"].as_u64() == status.parse().ok()),
                    "{path} {status}"
                );
            }
        }
    }
    // Nothing refers to what is not there.
    let text = description.to_string();
    for reference in text.split("\"$ref\":\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        let target = description.pointer(reference.trim_start_matches('#'));
        assert!(target.is_some(), "{reference}");
    }
}

#[tokio::test]
async fn the_page_loads_nothing_from_other_hosts() {
    let app = TestApp::start().await;
    let open = async |path: &str| send(app.client.get(format!("{}{path}", app.base))).await;
    let page = open("/docs").await;
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")));
    let policy = page.header("content-security-policy").expect("a policy").to_owned();
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("http"), "{policy}");
    // Whatever the page names is served from here; the browser is told to load nothing else.
    let mut named = 0;
    for target in page.text.split(['"', '\'']).filter(|text| text.ends_with(".js") || text.ends_with(".css"))
    {
        assert!(!target.contains("//"), "{target}");
        let file = open(&format!("/docs/{}", target.trim_start_matches("./"))).await;
        assert_eq!(file.status, 200, "{target}");
        assert!(file.header("content-security-policy").is_some());
        named += 1;
    }
    assert!(named >= 3, "{}", page.text);
    assert!(!page.text.contains("http://") && !page.text.contains("https://"), "{}", page.text);
    let start = open("/docs/swagger-initializer.js").await;
    assert!(start.text.contains("/openapi.json") && start.text.contains("\"none\""), "{}", start.text);
    open("/docs/nothing.js").await.problem(404, "not-found");
}
