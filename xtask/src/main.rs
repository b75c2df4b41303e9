//! The two commands of the README: `cargo xtask demo` serves the embedded demo model, `cargo xtask test` builds and
//! runs every test. Both do all set-up themselves and need nothing but Rust.

#![forbid(unsafe_code)]

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX, EXE_SUFFIX};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Seats that live in this repository; each is the package `seat-NAME`.
const SEATS: &[&str] = &["qwen3", "ds41", "glm", "qwen38", "decide"];
/// Seats that live outside the workspace, each a cargo project of its own.
const EXAMPLES: &[&str] = &["docs/examples/seat-llama", "docs/examples/seat-gemma3"];

const USAGE: &str = "\
cargo xtask demo [--port N] [-- FLAGS]   build host and seats, serve the demo model
cargo xtask seats [--dev]                build the seats into the seats folder beside the binary
cargo xtask examples                     build the example seats into the same folder
cargo xtask test                         build everything, run every test";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["demo", ref rest @ ..] => demo(rest),
        ["seats", ref rest @ ..] => {
            seats(if rest.contains(&"--dev") { Profile::Dev } else { Profile::Release }).map(drop)
        }
        ["examples"] => examples(Profile::Release),
        ["test"] => test(),
        _ => Err(USAGE.to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy)]
enum Profile {
    Dev,
    Release,
}

impl Profile {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Profile::Dev => &[],
            Profile::Release => &["--release"],
        }
    }
    fn folder(self) -> PathBuf {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        target.join(match self {
            Profile::Dev => "debug",
            Profile::Release => "release",
        })
    }
}

fn demo(rest: &[&str]) -> Result<(), String> {
    let (own, passed) = match rest.iter().position(|w| *w == "--") {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &[][..]),
    };
    let port = match own {
        [] => "8080",
        ["--port", port] => port,
        _ => return Err(USAGE.to_string()),
    };
    seats(Profile::Release)?;
    cargo(&["build", "--release", "--package", "bloomery-serve"])?;
    let model = root().join("tests/data/demo/ember-qwen3moe-25m-Q4_K_M.gguf");
    println!("\nWhen it listens, talk to it from another terminal:\n");
    println!("  curl http://127.0.0.1:{port}/v1/chat/completions -H 'Content-Type: application/json' \\");
    println!(
        "    -d '{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hello! Who are you?\"}}],\"temperature\":0}}'\n"
    );
    let mut server = Command::new(Profile::Release.folder().join(format!("bloomery-serve{EXE_SUFFIX}")));
    server.arg("-m").arg(model).args(["--port", port, "--alias", "ember"]).args(passed);
    run(&mut server)
}

/// Builds the repository's seats and puts them into the folder that the binary beside it searches.
fn seats(profile: Profile) -> Result<PathBuf, String> {
    let folder = profile.folder().join("seats");
    for seat in SEATS {
        let package = format!("seat-{seat}");
        cargo(&[&["build", "--package", &package], profile.flags()].concat())?;
        place(&profile.folder(), &package, &folder)?;
    }
    Ok(folder)
}

/// Builds the example seats as a stranger would, each as a project of its own.
fn examples(profile: Profile) -> Result<(), String> {
    let folder = profile.folder().join("seats");
    let target =
        profile.folder().parent().map_or_else(|| root().join("target"), Path::to_path_buf).join("examples");
    for example in EXAMPLES {
        let manifest = root().join(example).join("Cargo.toml");
        let mut build = Command::new(cargo_program());
        build
            .args(["build", "--manifest-path"])
            .arg(manifest)
            .args(profile.flags())
            .env("CARGO_TARGET_DIR", &target);
        run(&mut build)?;
        let name = example.rsplit('/').next().unwrap_or(example);
        let built = target.join(profile.folder().file_name().unwrap_or_default());
        place(&built, name, &folder)?;
    }
    Ok(())
}

/// Copies a built library beside its name in the seats folder; a rename at the end, so a running host never sees half.
fn place(built: &Path, package: &str, folder: &Path) -> Result<(), String> {
    let file = format!("{DLL_PREFIX}{}{DLL_SUFFIX}", package.replace('-', "_"));
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let (from, to) = (built.join(&file), folder.join(&file));
    let half = folder.join(format!("{file}.new"));
    std::fs::copy(&from, &half).map_err(|e| format!("{}: {e}", from.display()))?;
    std::fs::rename(&half, &to).map_err(|e| format!("{}: {e}", to.display()))
}

fn test() -> Result<(), String> {
    seats(Profile::Dev)?;
    examples(Profile::Dev)?;
    for example in EXAMPLES {
        let mut tests = Command::new(cargo_program());
        tests.args(["test", "--quiet", "--manifest-path"]).arg(root().join(example).join("Cargo.toml"));
        tests.env(
            "CARGO_TARGET_DIR",
            Profile::Dev.folder().parent().unwrap_or(Path::new("target")).join("examples"),
        );
        run(&mut tests)?;
    }
    cargo(&["build", "--package", "bloomery-serve", "--package", "bloomery-bench"])?;
    cargo(&["test", "--workspace", "--no-fail-fast"])
}

fn cargo(arguments: &[&str]) -> Result<(), String> {
    run(Command::new(cargo_program()).args(arguments).current_dir(root()))
}

fn run(command: &mut Command) -> Result<(), String> {
    let shown: Vec<String> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .map(Into::into)
        .collect();
    let shown = shown.join(" ");
    println!("+ {shown}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{shown}: {status}")),
        Err(why) => Err(format!("{shown}: {why}")),
    }
}

fn cargo_program() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}
