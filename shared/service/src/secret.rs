//! Secrets come from the environment or from a file, and are never shown.

use std::path::Path;

use secrecy::{ExposeSecret, SecretString};

use crate::ConfigError;

/// The secret of setting `name`: its own value, else the content of the file that `<name>_FILE` names, without
/// the trailing newline.
///
/// # Errors
/// Both given, none given, an unreadable or an empty file.
pub fn read(
    name: &'static str,
    value: Option<&SecretString>,
    file: Option<&Path>,
) -> Result<SecretString, ConfigError> {
    let secret = match (value, file) {
        (Some(_), Some(_)) => {
            return Err(ConfigError::invalid(name, format_args!("{name} and {name}_FILE are both given")));
        }
        (Some(value), None) => value.clone(),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).map_err(|e| {
                ConfigError::invalid(name, format_args!("{name}_FILE {} cannot be read: {e}", path.display()))
            })?;
            SecretString::from(text.trim_end_matches(['\r', '\n']).to_owned())
        }
        (None, None) => return Err(ConfigError::Missing { name }),
    };
    if secret.expose_secret().is_empty() {
        return Err(ConfigError::invalid(name, "it is empty"));
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_comes_from_exactly_one_place() {
        let value = SecretString::from("s3cret".to_owned());
        assert_eq!(read("X", Some(&value), None).expect("given").expose_secret(), "s3cret");
        assert!(matches!(read("X", None, None), Err(ConfigError::Missing { name: "X" })));
        let missing = read("X", None, Some(Path::new("/nowhere/x"))).expect_err("no such file").to_string();
        assert!(missing.contains("X_FILE") && missing.contains("/nowhere/x"), "{missing}");
        assert!(read("X", Some(&value), Some(Path::new("/nowhere/x"))).is_err());
        assert!(read("X", Some(&SecretString::from(String::new())), None).is_err());
    }
}
