//! The official `openai` package, fetched by name into a folder of its own, against the real server.

use bloomery_tests::{demo_model, repository, server::Server};
use std::process::Command;

#[test]
fn official_client_is_served() {
    let packages = repository().join("target/test-python");
    let installed = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"])
        .arg(&packages)
        .args(["--upgrade", "openai==2.*"])
        .output();
    match installed {
        Ok(output) if output.status.success() => {}
        other => {
            println!("skipped: the package openai could not be installed: {other:?}");
            return;
        }
    }
    let flags = ["-c", "2048", "--alias", "ember", "--api-key", "secret"];
    let Some(server) = Server::start(&demo_model(), &flags) else { return };
    let script = repository().join("tests/clients/openai_client.py");
    let output =
        Command::new("python3").arg(script).arg(&server.url).env("PYTHONPATH", &packages).output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
