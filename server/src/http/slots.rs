//! Saving, restoring and erasing slots.

use std::path::{Path, PathBuf};

use axum::{
    extract::{Request, State},
    http::Uri,
};
use serde_json::json;

use super::routes::{Answer, Shared, ok, read, ready};
use crate::{engine::SlotFile, error::ApiError, request::fields::Fields};

/// POST `/slots/{id}?action=save|restore|erase`.
pub async fn act(
    State(app): Shared,
    axum::extract::Path(id): axum::extract::Path<String>,
    request: Request,
) -> Answer {
    let Some(folder) = app.settings.slot_save_path.clone() else {
        return Err(ApiError::NotSupported(
            "This server does not support slots action. Start it with `--slot-save-path`".to_owned(),
        ));
    };
    let ready = ready(&app)?;
    let slot = id
        .parse::<usize>()
        .ok()
        .filter(|slot| *slot < ready.served.facts.n_slots)
        .ok_or_else(|| ApiError::Invalid("Invalid slot ID".to_owned()))?;
    let action = parameter(request.uri(), "action").unwrap_or_default();
    if !matches!(action.as_str(), "save" | "restore" | "erase") {
        return Err(ApiError::Invalid("Invalid action".to_owned()));
    }
    let engine = &ready.served.engine;
    if action == "erase" {
        let done = engine.slot_erase(slot).await?;
        return Ok(ok(&json!({"id_slot": slot, "n_erased": done.n_tokens})));
    }
    let body = read(&app, request.into_body()).await?;
    let name = Fields(&body)
        .text("filename")?
        .ok_or_else(|| ApiError::Invalid("\"filename\" is required".to_owned()))?;
    let path = inside(&folder, name).ok_or_else(|| ApiError::Invalid("Invalid filename".to_owned()))?;
    Ok(ok(&if action == "save" {
        let SlotFile { n_tokens, n_bytes, ms } = engine.slot_save(slot, path).await?;
        json!({
            "id_slot": slot, "filename": name, "n_saved": n_tokens, "n_written": n_bytes, "timings": {"save_ms": ms},
        })
    } else {
        if !path.is_file() {
            return Err(ApiError::Invalid(format!("Unable to restore slot: there is no file {name:?}")));
        }
        let SlotFile { n_tokens, n_bytes, ms } = engine.slot_restore(slot, path).await?;
        json!({
            "id_slot": slot, "filename": name, "n_restored": n_tokens, "n_read": n_bytes,
            "timings": {"restore_ms": ms},
        })
    }))
}

/// A parameter of the query. The words here need no decoding.
pub fn parameter(uri: &Uri, name: &str) -> Option<String> {
    uri.query()?.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key == name).then(|| value.to_owned())
    })
}

/// The file of this name in the folder, if the name can mean nothing but that.
fn inside(folder: &Path, name: &str) -> Option<PathBuf> {
    let plain = !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && !name.ends_with(['.', ' '])
        && !name.starts_with(' ')
        && !name.chars().any(|c| c.is_control() || r#"/\:*?"<>|"#.contains(c));
    plain.then(|| folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_the_folder() {
        let folder = Path::new("/s");
        assert_eq!(inside(folder, "s0.bin"), Some(PathBuf::from("/s/s0.bin")));
        for name in ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", ".hidden", "a\0", "a ", "C:x", "x?"]
        {
            assert_eq!(inside(folder, name), None, "{name:?}");
        }
    }

    #[test]
    fn parameters() {
        let uri: Uri = "/slots?fail_on_no_slot=1&x".parse().unwrap();
        assert_eq!(parameter(&uri, "fail_on_no_slot").as_deref(), Some("1"));
        assert_eq!(parameter(&uri, "x").as_deref(), Some(""));
        assert_eq!(parameter(&uri, "y"), None);
    }
}
