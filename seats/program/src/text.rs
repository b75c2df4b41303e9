//! A program as text, one node a line.

use crate::{Program, Role, State, StateKind};
use std::fmt::Write;

/// The program as a person reads it. Constants are printed as JSON, so nothing is rounded.
pub fn text(program: &Program) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "program {} language {}", program.seat, program.language);
    for (i, state) in program.states.iter().enumerate() {
        let _ = writeln!(out, "state {i} {}", state_line(state));
    }
    for graph in &program.graphs {
        match graph.role {
            Role::Target {} => out.push_str("graph target\n"),
            Role::Draft { depth, chain, mask_token } => {
                let chained = if chain { " chained" } else { "" };
                let mask = mask_token.map_or(String::new(), |t| format!(" mask {t}"));
                let _ = writeln!(out, "graph draft depth {depth}{chained}{mask}");
            }
            Role::Observe {} => out.push_str("graph observe\n"),
        }
        for input in &graph.inputs {
            let _ = writeln!(out, "  %{} = input {} {}", input.value.0, json(&input.kind), input.shape);
        }
        for node in &graph.nodes {
            let results: Vec<String> =
                node.outs.iter().map(|o| format!("%{} {} {}", o.value.0, o.name, o.shape)).collect();
            let operands: Vec<String> = node.ins.iter().map(|v| format!("%{}", v.0)).collect();
            let tensors: Vec<String> =
                node.tensors.iter().map(|(role, name)| format!("{role}={name}")).collect();
            let separator = if results.is_empty() { "" } else { " = " };
            let _ =
                write!(out, "  {}{separator}{}({})", results.join(", "), node.op.name(), operands.join(", "));
            if !tensors.is_empty() {
                let _ = write!(out, " [{}]", tensors.join(" "));
            }
            let constants = constants(node);
            if !constants.is_empty() {
                let _ = write!(out, " {constants}");
            }
            out.push('\n');
        }
        for output in &graph.outputs {
            let _ = writeln!(out, "  output {} {} %{}", json(&output.kind), output.name, output.value.0);
        }
    }
    for note in &program.notes {
        let _ = writeln!(out, "note {note}");
    }
    out
}

fn constants(node: &crate::Node) -> String {
    let Ok(serde_json::Value::Object(mut fields)) = serde_json::to_value(&node.op) else {
        return String::new();
    };
    fields.remove("kind");
    let mut lines: Vec<String> = fields.into_iter().map(|(k, v)| format!("{k}={}", sorted(v))).collect();
    lines.sort();
    lines.join(" ")
}

/// The same value with its keys in order: how serde_json orders them depends on features that other crates switch on.
fn sorted(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        Value::Object(fields) => {
            let ordered: std::collections::BTreeMap<String, Value> =
                fields.into_iter().map(|(key, value)| (key, sorted(value))).collect();
            ordered.into_iter().collect()
        }
        other => other,
    }
}

fn state_line(state: &State) -> String {
    let kind = match &state.kind {
        StateKind::Rows { parts, every, window } => {
            let parts: Vec<String> = parts.iter().map(|p| format!("{} {}", json(&p.role), p.width)).collect();
            let window = window.map_or(String::new(), |w| format!(" window {w}"));
            format!("rows [{}] every {every}{window}", parts.join(", "))
        }
        StateKind::Recent { rows, width } => format!("recent {rows} rows of {width}"),
        StateKind::Recurrent { dims } => format!("recurrent {dims:?}"),
        StateKind::Tokens { count } => format!("tokens {count}"),
    };
    format!("{} {kind} rollback {}", state.name, json(&state.rollback))
}

fn json<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(s)) => s,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}
