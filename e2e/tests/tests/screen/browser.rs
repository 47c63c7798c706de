//! Chromium without a window, driven over a pipe with the DevTools protocol: JSON messages that end with a zero byte.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use localnet_e2e::PATIENCE;
use localnet_lab::Namespace;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The protocol uses the file descriptors 3 and 4.
const START: &str = "exec chromium \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";

/// A browser with one page. Dropping it ends the browser.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    number: u64,
    session: Option<String>,
    /// Errors of scripts, and violations of the page's content security policy.
    pub(crate) errors: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts the browser in a namespace, with a page of 1280 × 800 pixels.
    pub(crate) fn start(namespace: &Namespace) -> anyhow::Result<Self> {
        let profile = tempfile::tempdir().context("creating a folder for the browser")?;
        let folder = format!("--user-data-dir={}", profile.path().display());
        let mut command = Command::new("sh");
        command.args(["-c", START, "sh", "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"]);
        command.args([
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            &folder,
            "about:blank",
        ]);
        command.env("HOME", profile.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = namespace.run(|| command.spawn().context("starting chromium (e2e/deps.sh installs it)"))?;
        let to = child.stdin.take().context("the browser has no input")?;
        let from = BufReader::new(child.stdout.take().context("the browser has no output")?);
        let mut browser = Self { child, to, from, number: 0, session: None, errors: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attach)?;
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, &json!({}))?;
        }
        browser.resize(1280, 800)?;
        Ok(browser)
    }

    /// Calls a method of the protocol.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> anyhow::Result<Value> {
        self.number += 1;
        let mut message = json!({"id": self.number, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).context("writing to the browser")?;
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).context("reading from the browser")?;
            anyhow::ensure!(bytes.pop() == Some(0), "the browser has ended during {method}");
            let answer: Value = serde_json::from_slice(&bytes).context("reading from the browser")?;
            if answer["id"] == self.number {
                anyhow::ensure!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
                return Ok(answer["result"].clone());
            }
            let parameters = &answer["params"];
            match answer["method"].as_str() {
                Some("Runtime.exceptionThrown") => self.errors.push(parameters["exceptionDetails"].to_string()),
                Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => {
                    self.errors.push(parameters["entry"].to_string());
                }
                _ => {}
            }
        }
    }

    /// Sets the size of the page.
    pub(crate) fn resize(&mut self, width: u32, height: u32) -> anyhow::Result<()> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &size).map(drop)
    }

    /// Opens an address.
    pub(crate) fn open(&mut self, address: &str) -> anyhow::Result<()> {
        self.call("Page.navigate", &json!({"url": address})).map(drop)
    }

    /// The value of a JavaScript expression.
    pub(crate) fn value(&mut self, expression: &str) -> anyhow::Result<Value> {
        let of = self.call("Runtime.evaluate", &json!({"expression": expression, "returnByValue": true}))?;
        anyhow::ensure!(of.get("exceptionDetails").is_none(), "{expression}: {}", of["exceptionDetails"]);
        Ok(of["result"]["value"].clone())
    }

    /// Waits until a JavaScript expression is true. Meanwhile, calls `work`.
    pub(crate) fn await_true(&mut self, expression: &str, mut work: impl FnMut()) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.value(expression)? != true {
            if Instant::now() > deadline {
                let text = self.value("document.body.innerText")?;
                anyhow::bail!(
                    "waited for {expression}; {:?}; the page:\n{}",
                    self.errors,
                    text.as_str().unwrap_or_default()
                );
            }
            work();
            // `park_timeout` would return at once, because the work has waited for other threads. Too many connections would use up the ports of
            // the client.
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Presses a key, such as `Tab` or `Enter`.
    pub(crate) fn press(&mut self, key: &str) -> anyhow::Result<()> {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            _ => anyhow::bail!("{key} is no key of these tests"),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", &event)?;
        }
        Ok(())
    }

    /// Types text into the element that has the focus.
    pub(crate) fn write(&mut self, text: &str) -> anyhow::Result<()> {
        self.call("Input.insertText", &json!({"text": text})).map(drop)
    }

    /// The page as a screen reader sees it: the role and the name of each element.
    pub(crate) fn accessible(&mut self) -> anyhow::Result<Vec<(String, String)>> {
        let tree = self.call("Accessibility.getFullAXTree", &json!({}))?;
        let nodes = tree["nodes"].as_array().context("there is no tree")?.iter();
        let text = |of: &Value| of["value"].as_str().unwrap_or_default().to_owned();
        let shown = nodes.filter(|node| node["ignored"] != true);
        Ok(shown.map(|node| (text(&node["role"]), text(&node["name"]))).collect())
    }

    /// A picture of the page, as PNG.
    pub(crate) fn picture(&mut self) -> anyhow::Result<Vec<u8>> {
        let answer = self.call("Page.captureScreenshot", &json!({"format": "png"}))?;
        let text = answer["data"].as_str().context("there is no picture")?;
        data_encoding::BASE64.decode(text.as_bytes()).context("the picture is no Base64")
    }

    /// Compares a picture of the page with nothing, but writes it into the docs if `UPDATE_EXPECT=1`. Fails if it is too large for the
    /// docs, or if the docs have none.
    pub(crate) fn document(&mut self, path: &Path) -> anyhow::Result<()> {
        let picture = self.picture()?;
        anyhow::ensure!(picture.starts_with(b"\x89PNG") && picture.len() <= 150 << 10, "{} bytes", picture.len());
        if std::env::var_os("UPDATE_EXPECT").is_some_and(|value| value == "1") {
            std::fs::write(path, picture)?;
        }
        anyhow::ensure!(path.exists(), "{} is missing: run the same test with UPDATE_EXPECT=1", path.display());
        Ok(())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Asks the browser to end its other processes, too. It may have ended already.
        _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        _ = std::io::copy(&mut self.from, &mut std::io::sink());
        _ = self.child.wait();
    }
}
