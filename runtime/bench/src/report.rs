//! llama-bench's rows: the markdown table, JSON and CSV, so that both programs' outputs stand side by side.

use std::fmt::Write;

/// One measured row.
#[derive(Debug, Clone)]
pub struct Row {
    /// Facts of the model and the machine, the same for every row.
    pub subject: Subject,
    /// Settings of this row.
    pub setting: Setting,
    /// When the test began, RFC 3339 in UTC.
    pub test_time: String,
    /// Nanoseconds of every repetition.
    pub samples_ns: Vec<u64>,
}

/// What was measured.
#[derive(Debug, Clone, Default)]
pub struct Subject {
    /// Version of this program.
    pub version: String,
    /// The processor's own name.
    pub cpu_info: String,
    /// Backend as llama-bench prints it.
    pub backend: String,
    /// File.
    pub model_filename: String,
    /// For example `qwen3moe 25M Q4_K - Medium`.
    pub model_type: String,
    /// Bytes of weights.
    pub model_size: u64,
    /// Parameters.
    pub model_n_params: u64,
}

/// How it was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Tokens in one call at most.
    pub n_batch: usize,
    /// Tokens in one executor step at most.
    pub n_ubatch: usize,
    /// Worker threads.
    pub n_threads: usize,
    /// Cache type of keys.
    pub type_k: &'static str,
    /// Cache type of values.
    pub type_v: &'static str,
    /// Prompt tokens.
    pub n_prompt: usize,
    /// Generated tokens.
    pub n_gen: usize,
    /// Tokens in the context before the clock starts.
    pub n_depth: usize,
    /// Sequences side by side.
    pub n_parallel: usize,
}

impl Row {
    /// Tokens a second of every repetition.
    pub fn samples_ts(&self) -> Vec<f64> {
        let tokens = (self.setting.n_parallel * (self.setting.n_prompt + self.setting.n_gen)) as f64;
        self.samples_ns.iter().map(|ns| tokens * 1e9 / *ns as f64).collect()
    }

    fn ns(&self) -> Vec<f64> {
        self.samples_ns.iter().map(|ns| *ns as f64).collect()
    }

    /// `pp512`, `tg128`, `pp512+tg128 @ d1024`.
    pub fn test(&self) -> String {
        let Setting { n_prompt, n_gen, n_depth, n_parallel, .. } = self.setting;
        let mut name = match (n_prompt, n_gen) {
            (p, 0) => format!("pp{p}"),
            (0, g) => format!("tg{g}"),
            (p, g) => format!("pp{p}+tg{g}"),
        };
        if n_parallel > 1 {
            let _ = write!(name, " x{n_parallel}");
        }
        if n_depth > 0 {
            let _ = write!(name, " @ d{n_depth}");
        }
        name
    }

    /// Field names and values in llama-bench's order; fields of features that this program lacks are left out.
    fn fields(&self) -> Vec<(&'static str, Field)> {
        use Field::{Number, Text};
        let (s, t) = (&self.subject, &self.setting);
        let (avg_ns, stddev_ns) = mean_and_deviation(&self.ns());
        let (avg_ts, stddev_ts) = mean_and_deviation(&self.samples_ts());
        vec![
            ("build_commit", Text(s.version.clone())),
            ("cpu_info", Text(s.cpu_info.clone())),
            ("backends", Text(s.backend.clone())),
            ("model_filename", Text(s.model_filename.clone())),
            ("model_type", Text(s.model_type.clone())),
            ("model_size", Number(s.model_size.to_string())),
            ("model_n_params", Number(s.model_n_params.to_string())),
            ("n_batch", Number(t.n_batch.to_string())),
            ("n_ubatch", Number(t.n_ubatch.to_string())),
            ("n_threads", Number(t.n_threads.to_string())),
            ("type_k", Text(t.type_k.into())),
            ("type_v", Text(t.type_v.into())),
            ("n_prompt", Number(t.n_prompt.to_string())),
            ("n_gen", Number(t.n_gen.to_string())),
            ("n_depth", Number(t.n_depth.to_string())),
            ("test_time", Text(self.test_time.clone())),
            ("avg_ns", Number(format!("{avg_ns:.0}"))),
            ("stddev_ns", Number(format!("{stddev_ns:.0}"))),
            ("avg_ts", Number(format!("{avg_ts:.6}"))),
            ("stddev_ts", Number(format!("{stddev_ts:.6}"))),
        ]
    }
}

enum Field {
    Text(String),
    Number(String),
}

/// The table's first two lines.
pub fn markdown_header() -> String {
    let mut out = String::from("|");
    for (name, width) in MARKDOWN {
        let _ = if *width < 0 {
            write!(out, " {name:<w$} |", w = width.unsigned_abs())
        } else {
            write!(out, " {name:>w$} |", w = width.unsigned_abs())
        };
    }
    out.push_str("\n|");
    for (_, width) in MARKDOWN {
        let _ =
            write!(out, " {}{} |", "-".repeat(width.unsigned_abs() - 1), if *width > 0 { ':' } else { '-' });
    }
    out.push('\n');
    out
}

/// Names and widths; negative widths align to the left.
const MARKDOWN: &[(&str, isize)] = &[
    ("model", -30),
    ("size", 10),
    ("params", 10),
    ("backend", -10),
    ("threads", 7),
    ("test", 15),
    ("t/s", 20),
];

/// One line of the table.
pub fn markdown_row(row: &Row) -> String {
    let (avg, deviation) = mean_and_deviation(&row.samples_ts());
    let s = &row.subject;
    let size = if s.model_size < 1 << 30 {
        format!("{:.2} MiB", s.model_size as f64 / f64::from(1 << 20))
    } else {
        format!("{:.2} GiB", s.model_size as f64 / f64::from(1 << 30))
    };
    let params = if s.model_n_params < 1_000_000_000 {
        format!("{:.2} M", s.model_n_params as f64 / 1e6)
    } else {
        format!("{:.2} B", s.model_n_params as f64 / 1e9)
    };
    format!(
        "| {:<30} | {size:>10} | {params:>10} | {:<10} | {:>7} | {:>15} | {:>20} |\n",
        s.model_type,
        s.backend,
        row.setting.n_threads,
        row.test(),
        format!("{avg:.2} ± {deviation:.2}")
    )
}

/// All rows as a JSON array of llama-bench's objects.
pub fn json(rows: &[Row]) -> String {
    let objects: Vec<String> = rows.iter().map(json_object).collect();
    format!("[\n{}\n]\n", objects.join(",\n"))
}

fn json_object(row: &Row) -> String {
    let mut out = String::from("  {\n");
    for (name, value) in row.fields() {
        let value = match value {
            Field::Text(text) => serde_json::Value::from(text).to_string(),
            Field::Number(number) => number,
        };
        let _ = writeln!(out, "    \"{name}\": {value},");
    }
    let ns: Vec<String> = row.samples_ns.iter().map(u64::to_string).collect();
    let ts: Vec<String> = row.samples_ts().iter().map(|t| format!("{t:.6}")).collect();
    let _ = write!(
        out,
        "    \"samples_ns\": [ {} ],\n    \"samples_ts\": [ {} ]\n  }}",
        ns.join(", "),
        ts.join(", ")
    );
    out
}

/// The CSV header line.
pub fn csv_header(row: &Row) -> String {
    let names: Vec<&str> = row.fields().iter().map(|(name, _)| *name).collect();
    names.join(",") + "\n"
}

/// One CSV line; every value is quoted, as llama-bench does.
pub fn csv_row(row: &Row) -> String {
    let values: Vec<String> = row
        .fields()
        .into_iter()
        .map(|(_, value)| match value {
            Field::Text(v) | Field::Number(v) => format!("\"{}\"", v.replace('"', "\"\"")),
        })
        .collect();
    values.join(",") + "\n"
}

/// Mean and sample standard deviation.
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            subject: Subject {
                version: "0.1.0".into(),
                cpu_info: "A \"B\" C".into(),
                backend: "CPU".into(),
                model_filename: "m.gguf".into(),
                model_type: "llama 135M Q4_1".into(),
                model_size: 92 << 20,
                model_n_params: 134_515_008,
            },
            setting: Setting {
                n_batch: 2048,
                n_ubatch: 512,
                n_threads: 2,
                type_k: "f16",
                type_v: "f16",
                n_prompt: 512,
                n_gen: 0,
                n_depth: 0,
                n_parallel: 1,
            },
            test_time: "2026-01-01T00:00:00Z".into(),
            samples_ns: vec![1_000_000_000, 2_000_000_000],
        }
    }

    #[test]
    fn markdown_lines_up() {
        let header = markdown_header();
        let lines: Vec<&str> = header.lines().collect();
        let line = markdown_row(&row());
        assert_eq!(lines[0].chars().count(), lines[1].chars().count());
        assert_eq!(lines[0].chars().count(), line.trim_end().chars().count());
        assert!(line.contains("|           pp512 |      384.00 ± 181.02 |"), "{line}");
        assert!(line.contains("|  92.00 MiB |   134.52 M |"), "{line}");
    }

    #[test]
    fn json_parses_and_carries_the_samples() {
        let parsed: serde_json::Value = serde_json::from_str(&json(&[row(), row()])).unwrap();
        assert_eq!(parsed[1]["samples_ns"][1], 2_000_000_000u64);
        assert_eq!(parsed[0]["n_prompt"], 512);
        assert_eq!(parsed[0]["avg_ts"], 384.0);
        assert_eq!(parsed[0]["cpu_info"], "A \"B\" C");
    }

    #[test]
    fn csv_quotes() {
        assert_eq!(csv_header(&row()).split(',').count(), 20);
        assert!(csv_row(&row()).contains("\"A \"\"B\"\" C\""));
    }

    #[test]
    fn names_of_tests() {
        let mut r = row();
        r.setting.n_gen = 16;
        r.setting.n_depth = 64;
        assert_eq!(r.test(), "pp512+tg16 @ d64");
        r.setting.n_prompt = 0;
        assert_eq!(r.test(), "tg16 @ d64");
        r.setting.n_parallel = 8;
        assert_eq!(r.test(), "tg16 x8 @ d64");
        assert_eq!(r.samples_ts()[0], 128.0, "tokens of all sequences");
    }

    #[test]
    fn deviation_of_a_sample() {
        assert_eq!(mean_and_deviation(&[1.0, 3.0]), (2.0, 2f64.sqrt()));
        assert_eq!(mean_and_deviation(&[5.0]), (5.0, 0.0));
    }
}
