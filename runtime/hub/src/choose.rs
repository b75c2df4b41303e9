//! Which files of a repository make up the model that was asked for. The rules are llama.cpp's, so that one command
//! line means one model with both programs.

use crate::error::HubError;

/// Tried in this order when no quantisation is given; then the first model of the repository.
const DEFAULT_TAGS: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Files that lie beside models and are none: vision towers, importance matrices, draft models.
const NOT_MODELS: [&str; 6] = ["mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

/// Chooses among `files` (names in the repository, in its order) and gives all parts of the choice, in order.
/// `exact` is a file asked for by its name (`--hf-file`); else `tag` is a quantisation, in any letter case, that must
/// stand before a `.` or `-` in the name.
///
/// # Errors
/// Nothing fits, or a part of a split model is missing.
pub fn choose(
    repo: &str,
    files: &[String],
    tag: Option<&str>,
    exact: Option<&str>,
) -> Result<Vec<String>, HubError> {
    let model = match (exact, tag) {
        (Some(exact), _) => files.iter().find(|file| *file == exact).ok_or_else(|| HubError::NoSuchFile {
            repo: repo.into(),
            file: exact.into(),
            available: files.iter().filter(|file| file.ends_with(".gguf")).cloned().collect(),
        })?,
        (None, Some(tag)) => models(files).find(|file| has_tag(file, tag)).ok_or_else(|| {
            let available: Vec<String> = models(files).cloned().collect();
            match available.is_empty() {
                true => HubError::NoModel { repo: repo.into() },
                false => HubError::NoSuchQuant { repo: repo.into(), tag: tag.into(), available },
            }
        })?,
        (None, None) => DEFAULT_TAGS
            .iter()
            .find_map(|tag| models(files).find(|file| has_tag(file, tag)))
            .or_else(|| models(files).next())
            .ok_or_else(|| HubError::NoModel { repo: repo.into() })?,
    };
    all_parts(repo, files, model)
}

/// Models, of split ones the first part.
fn models(files: &[String]) -> impl Iterator<Item = &String> {
    files.iter().filter(|file| {
        let name = file.rsplit('/').next().unwrap_or(file);
        let is_model = name.ends_with(".gguf") && !NOT_MODELS.iter().any(|word| name.contains(word));
        is_model && part_of(file).is_none_or(|part| part.number == 1)
    })
}

fn has_tag(file: &str, tag: &str) -> bool {
    let (file, tag) = (file.to_ascii_lowercase(), tag.to_ascii_lowercase());
    file.match_indices(&tag).any(|(start, found)| {
        file.get(start + found.len()..).is_some_and(|rest| rest.starts_with(['.', '-']))
    })
}

fn all_parts(repo: &str, files: &[String], model: &str) -> Result<Vec<String>, HubError> {
    let Some(chosen) = part_of(model) else { return Ok(vec![model.to_owned()]) };
    let mut parts: Vec<(usize, &String)> = files
        .iter()
        .filter_map(|file| Some((part_of(file)?, file)))
        .filter(|(part, _)| part.prefix == chosen.prefix && part.count == chosen.count)
        .map(|(part, file)| (part.number, file))
        .collect();
    parts.sort();
    parts.dedup_by_key(|(number, _)| *number);
    let complete = parts.len() == chosen.count
        && parts.iter().enumerate().all(|(index, (number, _))| *number == index + 1);
    if !complete {
        let (expected, found) = (chosen.count, parts.len());
        return Err(HubError::MissingPart { repo: repo.into(), file: model.into(), expected, found });
    }
    Ok(parts.into_iter().map(|(_, file)| file.clone()).collect())
}

struct Part<'a> {
    prefix: &'a str,
    /// From 1.
    number: usize,
    count: usize,
}

/// Reads `NAME-00002-of-00003.gguf`.
fn part_of(file: &str) -> Option<Part<'_>> {
    let rest = file.strip_suffix(".gguf")?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        let five = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        if five { text.parse::<usize>().ok() } else { None }
    };
    Some(Part { prefix, number: digits(number)?, count: digits(count).filter(|count| *count > 0)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(files: &[&str], tag: Option<&str>, exact: Option<&str>) -> Result<Vec<String>, HubError> {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        choose("user/model", &files, tag, exact)
    }

    const REPO: [&str; 9] = [
        "README.md",
        "mmproj-Q4_K_M.gguf",
        "model-BF16.gguf",
        "model-Q4_K_S.gguf",
        "model.Q4_K_M.gguf",
        "model-Q8_0.gguf",
        "imatrix-Q8_0.gguf",
        "mtp-model-Q4_K_M.gguf",
        "UD/model-IQ2_XXS-00001-of-00001.gguf",
    ];

    #[test]
    fn the_default_is_q4_k_m_then_q8_0_then_the_first_model() {
        assert_eq!(chosen(&REPO, None, None).unwrap(), ["model.Q4_K_M.gguf"]);
        let without: Vec<&str> = REPO.into_iter().filter(|file| *file != "model.Q4_K_M.gguf").collect();
        assert_eq!(chosen(&without, None, None).unwrap(), ["model-Q8_0.gguf"]);
        assert_eq!(
            chosen(&["x.txt", "mmproj-a.gguf", "b-Q3_K.gguf", "a-Q2_K.gguf"], None, None).unwrap(),
            ["b-Q3_K.gguf"]
        );
    }

    #[test]
    fn a_quantisation_is_matched_in_any_case_and_whole() {
        assert_eq!(chosen(&REPO, Some("q4_k_s"), None).unwrap(), ["model-Q4_K_S.gguf"]);
        assert_eq!(chosen(&REPO, Some("bf16"), None).unwrap(), ["model-BF16.gguf"]);
        assert_eq!(chosen(&REPO, Some("IQ2_XXS"), None).unwrap(), ["UD/model-IQ2_XXS-00001-of-00001.gguf"]);
        // `Q4_K` stands in names, but never before a dot or a dash.
        let error = chosen(&REPO, Some("Q4_K"), None).unwrap_err();
        assert!(error.to_string().contains("model-Q4_K_S.gguf, model.Q4_K_M.gguf"), "{error}");
        assert!(matches!(chosen(&["a.txt"], Some("Q8_0"), None), Err(HubError::NoModel { .. })));
        assert!(matches!(chosen(&[], None, None), Err(HubError::NoModel { .. })));
    }

    #[test]
    fn a_file_by_name_wins_and_must_exist() {
        assert_eq!(chosen(&REPO, Some("Q8_0"), Some("mmproj-Q4_K_M.gguf")).unwrap(), ["mmproj-Q4_K_M.gguf"]);
        let error = chosen(&REPO, None, Some("other.gguf")).unwrap_err();
        assert!(
            matches!(&error, HubError::NoSuchFile { .. }) && error.to_string().contains("model-Q8_0.gguf"),
            "{error}"
        );
    }

    #[test]
    fn all_parts_come_in_order() {
        let files = [
            "m-Q4_K_M-00003-of-00003.gguf",
            "m-Q4_K_M-00001-of-00003.gguf",
            "m-Q8_0-00001-of-00002.gguf",
            "m-Q4_K_M-00002-of-00003.gguf",
        ];
        let parts = chosen(&files, None, None).unwrap();
        assert_eq!(parts, [files[1], files[3], files[0]]);
        // Any part by name brings all of them.
        assert_eq!(chosen(&files, None, Some(files[0])).unwrap(), parts);
        let error = chosen(&files, Some("Q8_0"), None).unwrap_err();
        assert!(matches!(error, HubError::MissingPart { expected: 2, found: 1, .. }), "{error}");
    }

    use proptest::prelude::*;

    /// Names made of the pieces that the rules look at, in any order.
    fn name() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "model",
            "mmproj",
            "Q4_K_M",
            "q8_0",
            "-",
            ".",
            "/",
            "-00001-of-00002",
            "-00002-of-00002",
            "-of-",
            ".gguf",
            "ü",
            "00001",
        ]);
        prop::collection::vec(piece, 0..7).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn a_choice_is_of_the_repository_and_complete(
            files in prop::collection::vec(name(), 0..8), tag in prop::option::of("[qQ]?[0-9]?[_a-zü.-]{0,4}"),
        ) {
            let Ok(parts) = choose("user/model", &files, tag.as_deref(), None) else { return Ok(()) };
            prop_assert!(parts.iter().all(|part| files.contains(part)));
            let count = part_of(&parts[0]).map_or(1, |part| part.count);
            prop_assert_eq!(parts.len(), count);
            for (index, file) in parts.iter().enumerate() {
                prop_assert_eq!(part_of(file).map_or(1, |part| part.number), index + 1);
            }
        }
    }
}
