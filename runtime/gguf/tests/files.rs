//! Files on disk: mapping, parts, and how much memory opening one takes.

mod support;

use std::path::{Path, PathBuf};

use bloomery_gguf::{Access, GgufError, GgufFile, GgufWriter, WeightType};
use support::sample;

fn write(folder: &Path, name: &str, writer: &GgufWriter<'_>) -> PathBuf {
    let path = folder.join(name);
    writer.write_file(&path).unwrap();
    path
}

/// Part `number` of a model in three parts with one tensor each.
fn part(number: u16, count: u16, total: i32) -> GgufWriter<'static> {
    let mut writer = GgufWriter::new();
    if number == 0 {
        writer.metadata("general.architecture", "sample");
    }
    writer
        .metadata("split.no", number)
        .metadata("split.count", count)
        .metadata("split.tensors.count", total)
        .tensor_f32(&format!("blk.{number}.weight"), &[2], &[f32::from(number), 1.0]);
    writer
}

fn write_parts(folder: &Path) -> Vec<PathBuf> {
    (0..3)
        .map(|number| write(folder, &format!("m-{:05}-of-00003.gguf", number + 1), &part(number, 3, 3)))
        .collect()
}

#[test]
fn a_file_in_one_piece() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "model.gguf", &sample());
    let file = GgufFile::open(&path).unwrap();
    assert_eq!((file.version(), file.shards().len(), file.path()), (3, 1, &*path));
    assert_eq!(file.file_size(), std::fs::metadata(&path).unwrap().len());
    assert_eq!(file.file_type_name().unwrap(), "Q4_K - Medium");
    assert_eq!(file.parameter_count(), 8 + 96 + 1);
    assert_eq!(file.weight_bytes(), 32 + 102 + 4);
    let tensor = file.tensor("blk.0.weight").unwrap();
    assert_eq!((tensor.dims(), tensor.row_length(), tensor.row_count()), (&[32, 3][..], 32, 3));
    assert_eq!(file.data(tensor), [7; 102]);
    let scalar = file.tensor("scalar").unwrap();
    assert_eq!((scalar.dims(), file.data(scalar)), (&[][..], &9_f32.to_le_bytes()[..]));
    assert!(file.tensor("none").is_none());
}

#[test]
fn a_file_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<GgufFile>();
}

#[test]
fn any_part_opens_all_parts() {
    let folder = tempfile::tempdir().unwrap();
    for path in write_parts(folder.path()) {
        let file = GgufFile::open(&path).unwrap();
        assert_eq!(file.shards().len(), 3);
        assert_eq!(file.metadata().str("general.architecture").unwrap(), "sample");
        for number in 0..3 {
            let tensor = file.tensor(&format!("blk.{number}.weight")).unwrap();
            assert_eq!(tensor.shard(), number);
            assert_eq!(file.data(tensor)[..4], (number as f32).to_le_bytes());
        }
        assert_eq!(file.file_size(), file.shards().iter().map(|shard| shard.file_size()).sum::<u64>());
    }
}

#[test]
fn a_set_that_does_not_fit_together_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let paths = write_parts(folder.path());
    let refused = |path: &Path| GgufFile::open(path).expect_err("the set is broken");

    std::fs::rename(&paths[1], folder.path().join("away")).unwrap();
    let error = refused(&paths[2]);
    assert!(
        matches!(&error, GgufError::SplitMissing { path, number: 1, .. } if *path == paths[1]),
        "{error}"
    );
    assert!(error.to_string().starts_with("part 2 of 3 is missing: "), "{error}");

    for (wrong, key, text) in [
        (part(2, 3, 3), "split.no", "split.no is 2, expected 1"),
        (part(1, 4, 3), "split.count", "split.count is 4, expected 3"),
        (part(1, 3, 4), "split.tensors.count", "split.tensors.count is 4, expected 3"),
        (sample(), "split.count", "split.count is missing, expected 3"),
    ] {
        wrong.write_file(&paths[1]).unwrap();
        let error = refused(&paths[0]);
        assert!(matches!(&error, GgufError::SplitMismatch { key: found, .. } if *found == key), "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }

    let mut again = part(1, 3, 3);
    again.tensor_f32("blk.0.weight", &[1], &[0.0]);
    again.write_file(&paths[1]).unwrap();
    let error = refused(&paths[0]);
    assert!(matches!(error.fault(), GgufError::DuplicateTensor { .. }), "{error}");
    assert!(error.to_string().contains("m-00002-of-00003.gguf"), "{error}");

    part(1, 3, 3).tensor_f32("more", &[1], &[0.0]).write_file(&paths[1]).unwrap();
    let error = refused(&paths[0]);
    let counted = matches!(error, GgufError::SplitMismatch { key: "split.tensors.count", expected: 4, .. });
    assert!(counted, "{error}");

    let renamed = write(folder.path(), "renamed.gguf", &part(0, 3, 3));
    let error = refused(&renamed);
    assert!(matches!(error, GgufError::SplitName { number: 0, count: 3, .. }), "{error}");

    let beyond = write(folder.path(), "b-00004-of-00003.gguf", &part(3, 3, 3));
    assert!(matches!(refused(&beyond).fault(), GgufError::OutOfRange { .. }));
}

#[test]
fn what_is_no_model_is_refused_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |path: &Path| GgufFile::open(path).expect_err("no model");
    assert!(matches!(refused(folder.path()), GgufError::NotAFile { .. }));
    let absent = folder.path().join("absent.gguf");
    assert!(matches!(refused(&absent), GgufError::Open { .. }));
    let empty = folder.path().join("empty.gguf");
    std::fs::write(&empty, b"").unwrap();
    let error = refused(&empty);
    assert!(matches!(error.fault(), GgufError::Truncated { remaining: 0, .. }), "{error}");
    assert!(error.to_string().contains("empty.gguf"), "{error}");
}

#[test]
fn a_file_that_changed_under_its_map_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "model.gguf", &sample());
    let file = GgufFile::open(&path).unwrap();
    file.check_unchanged().unwrap();
    let out = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    out.set_len(100).unwrap();
    let error = file.check_unchanged().unwrap_err();
    assert!(matches!(error, GgufError::Changed { now: 100, .. }), "{error}");
}

/// Pages of `path` that are resident in this process, in bytes, as the kernel counts them (advice splits a map into
/// several entries).
#[cfg(target_os = "linux")]
fn resident(path: &Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    let mut kilobytes = Vec::new();
    for line in maps.lines() {
        match line.strip_prefix("Rss:") {
            Some(rss) if inside => {
                kilobytes.push(rss.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap());
                inside = false;
            }
            Some(_) => {}
            None => inside |= line.ends_with(path.to_str().unwrap()),
        }
    }
    assert!(!kilobytes.is_empty(), "the file is mapped");
    kilobytes.iter().sum::<u64>() * 1024
}

#[cfg(target_os = "linux")]
#[test]
fn opening_touches_the_head_only_and_pages_can_be_given_back() {
    const DATA: usize = 64 << 20;
    let folder = tempfile::tempdir().unwrap();
    let tokens: Vec<String> = (0..150_000).map(|id| format!("token {id}")).collect();
    let mut writer = GgufWriter::new();
    writer.metadata("tokens", tokens);
    writer.tensor("big", &[DATA as u64 / 34 * 32], WeightType::Q8_0, vec![1; DATA / 34 * 34]);
    let path = write(folder.path(), "big.gguf", &writer);
    drop(writer);

    let file = GgufFile::open(&path).unwrap();
    let opened = resident(&path);
    assert!(opened < 4 << 20, "opening made {opened} bytes resident");
    assert_eq!(file.metadata().array("tokens").unwrap().strings().last(), Some(Ok("token 149999")));

    let tensor = file.tensor("big").unwrap();
    file.advise_tensor(tensor, Access::Sequential).unwrap();
    assert!(file.data(tensor).iter().all(|byte| *byte == 1));
    assert!(resident(&path) > DATA as u64 * 9 / 10, "reading did not map the data");
    file.release_tensor(tensor).unwrap();
    let released = resident(&path);
    assert!(released < 4 << 20, "{released} bytes stayed resident");
    assert!(file.data(tensor).iter().all(|byte| *byte == 1), "released data reads as before");

    file.advise(Access::Random).unwrap();
    file.advise_part(tensor, 0..1000, Access::WillNeed).unwrap();
    assert!(file.advise_part(tensor, 0..DATA as u64 * 2, Access::WillNeed).is_err(), "outside the tensor");
}
