//! Routes that no description can know.

use std::path::Path;

/// The first argument of each route that the sources below `folder` add by hand: it is in no description, so the corpus
/// would miss it.
///
/// # Panics
/// The sources cannot be read.
#[must_use]
pub fn undescribed_routes(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut entries: Vec<_> =
        std::fs::read_dir(folder).expect("sources").map(|e| e.expect("entry").path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            found.extend(undescribed_routes(&path));
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("source");
        // Also those that hang a whole service below a path.
        for call in [".route(", ".route_service(", ".nest(", ".nest_service("] {
            let rest = text.split(call).skip(1);
            found.extend(rest.map(|rest| rest.split(['"', ')', ',']).nth(1).unwrap_or_default().to_owned()));
        }
    }
    found
}
