//! Encodings as options give them.

use crate::command_error::CommandError;
use kerple_core::encoding::{Encoding, Method, kind_of};

/// The encoding of this name with its default keys.
pub fn named(name: &str) -> Result<Encoding, CommandError> {
    let kind = kind_of(name).map_err(|unknown| CommandError::misuse(unknown.message, unknown.hint))?;
    Ok(Encoding::from(Method::named(kind).expect("a kind names a method")))
}

/// An encoding by its name, or with keys as a table of a run file or of JSON.
pub fn with_keys(text: &str) -> Result<Encoding, CommandError> {
    /// A run file with nothing else.
    #[derive(serde::Deserialize)]
    struct Given {
        encoding: Encoding,
    }

    if !text.trim_start().starts_with('{') {
        return named(text);
    }
    let read = if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() {
        let value = kerple_run::unique_keys::parse(text);
        value.and_then(serde_json::from_value).map_err(|error| error.to_string())
    } else {
        let given = toml::from_str::<Given>(&format!("encoding = {text}"));
        given.map(|given| given.encoding).map_err(|error| error.message().to_owned())
    };
    read.map_err(|message| {
        let hint = "write it as in a run file: '{ kind = \"kerple_log\", reach = 64 }'; `kerple describe config` lists \
            the keys of every encoding";
        CommandError::misuse(format!("{text}: {message}"), hint)
    })
}
