//! `localnet ui`: a page about the node, served on loopback. This file decides what a request gets; pure.
//!
//! ```text
//!  browser ─► serve (hyper) ─► request ─► Route ─┬─► a file of the page, which is part of this program
//!                                               └─► Ask ─► the answer of get, explain, history or shadow as JSON
//! ```
//!
//! Who may ask? The page shows what the brain's socket and the kernel contain, so a listener that any process of the machine can reach
//! is not enough. Each run therefore has a secret, the first part of the path. A page of another site can neither read the answers
//! (the browser's same-origin policy), nor pretend to be this host (the header `Host` must name the loopback), nor make the
//! command work (`Sec-Fetch-Site`).

pub mod serve;

use hyper::{HeaderMap, Method, StatusCode, header};

/// A file of the page.
#[derive(Debug, PartialEq, Eq)]
pub struct Asset {
    /// The name in the path.
    pub name: &'static str,
    /// The media type.
    pub kind: &'static str,
    /// The content.
    pub text: &'static str,
}

/// All files of the page. They need no other server.
pub const ASSETS: [Asset; 7] = [
    Asset { name: "", kind: "text/html; charset=utf-8", text: include_str!("ui/page/index.html") },
    Asset { name: "style.css", kind: "text/css; charset=utf-8", text: include_str!("ui/page/style.css") },
    Asset { name: "app.js", kind: "text/javascript; charset=utf-8", text: include_str!("ui/page/app.js") },
    Asset { name: "dom.js", kind: "text/javascript; charset=utf-8", text: include_str!("ui/page/dom.js") },
    Asset { name: "services.js", kind: "text/javascript; charset=utf-8", text: include_str!("ui/page/services.js") },
    Asset { name: "path.js", kind: "text/javascript; charset=utf-8", text: include_str!("ui/page/path.js") },
    Asset { name: "past.js", kind: "text/javascript; charset=utf-8", text: include_str!("ui/page/past.js") },
];

/// Only this server's own scripts, styles and answers; no inline code, and no other page may embed this one.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A question that the page asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The state: the node, and its Services with their endpoints.
    State,
    /// The traffic of the Services.
    Traffic,
    /// The progress of the brain and the backends.
    Status,
    /// The last changes.
    History,
    /// The path of a packet.
    Explain {
        /// The sender, as in `--from`.
        from: String,
        /// The destination, as in `--to`.
        to: String,
    },
    /// The differences from kube-proxy's rules.
    Shadow,
}

/// What a request gets.
#[derive(Debug, PartialEq, Eq)]
pub enum Route {
    /// A file of the page.
    Asset(&'static Asset),
    /// The answer to a question.
    Ask(Ask),
    /// Nothing, and why.
    Refused(StatusCode, &'static str),
}

/// Decides what a request gets. `secret` is the first part of the path.
pub fn route(secret: &str, method: &Method, path: &str, query: &str, headers: &HeaderMap) -> Route {
    let text = |name| headers.get(name).and_then(|value: &header::HeaderValue| value.to_str().ok());
    if !text(header::HOST).is_some_and(is_loopback) {
        return Route::Refused(StatusCode::FORBIDDEN, "the header Host names another host than the loopback");
    }
    let from_elsewhere = |site: &str| site != "same-origin" && site != "none";
    let rest = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    let Some((_, rest)) = rest.filter(|(given, _)| same(given, secret)) else {
        return Route::Refused(StatusCode::NOT_FOUND, "open the address that localnet ui has printed");
    };
    if method != Method::GET {
        return Route::Refused(StatusCode::METHOD_NOT_ALLOWED, "only GET is possible");
    }
    if let Some(asset) = ASSETS.iter().find(|asset| asset.name == rest) {
        return Route::Asset(asset);
    }
    if text(header::HeaderName::from_static("sec-fetch-site")).is_some_and(from_elsewhere) {
        return Route::Refused(StatusCode::FORBIDDEN, "another page asks");
    }
    let value = |name: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs.find(|(of, _)| of == name).map(|(_, value)| value.into_owned()).unwrap_or_default()
    };
    Route::Ask(match rest {
        "api/state" => Ask::State,
        "api/traffic" => Ask::Traffic,
        "api/status" => Ask::Status,
        "api/history" => Ask::History,
        "api/explain" => Ask::Explain { from: value("from"), to: value("to") },
        "api/shadow" => Ask::Shadow,
        _ => return Route::Refused(StatusCode::NOT_FOUND, "there is no such file"),
    })
}

/// Whether the value of the header `Host` names the loopback. Any port is right, because a tunnel may use another one.
fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    matches!(name, "localhost" | "127.0.0.1" | "[::1]")
}

/// Compares in a time that does not depend on where the texts differ.
fn same(one: &str, other: &str) -> bool {
    let differences = one.bytes().zip(other.bytes()).fold(0, |found, (a, b)| found | (a ^ b));
    one.len() == other.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123abcd";

    fn routed(method: &Method, path: &str, headers: &[(&'static str, &str)]) -> Route {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        route(SECRET, method, path, query, &map)
    }

    fn get(path: &str) -> Route {
        routed(&Method::GET, path, &[("host", "127.0.0.1:4000")])
    }

    fn refusal(route: &Route) -> Option<u16> {
        match route {
            Route::Refused(code, _) => Some(code.as_u16()),
            Route::Asset(_) | Route::Ask(_) => None,
        }
    }

    #[test]
    fn the_page_and_its_questions_are_found() {
        assert_eq!(get("/0123abcd/"), Route::Asset(&ASSETS[0]));
        assert_eq!(get("/0123abcd/app.js"), Route::Asset(&ASSETS[2]));
        assert_eq!(get("/0123abcd/api/state"), Route::Ask(Ask::State));
        let explain = Ask::Explain { from: "outside:fd00::1".to_owned(), to: "shop/web:http".to_owned() };
        assert_eq!(get("/0123abcd/api/explain?from=outside%3Afd00%3A%3A1&to=shop%2Fweb%3Ahttp"), Route::Ask(explain));
    }

    #[test]
    fn only_its_own_page_with_the_secret_may_ask() {
        for (path, code) in [("/", 404), ("/0123abce/", 404), ("/0123abcd", 404), ("/0123abcd/secret", 404)] {
            assert_eq!(refusal(&get(path)), Some(code), "{path}");
        }
        let state = "/0123abcd/api/state";
        assert_eq!(refusal(&routed(&Method::POST, state, &[("host", "localhost")])), Some(405));
        for host in ["localhost", "localhost:80", "127.0.0.1:4000", "[::1]:4000", "[::1]"] {
            assert_eq!(refusal(&routed(&Method::GET, state, &[("host", host)])), None, "{host}");
        }
        for host in
            ["", "example.com", "example.com:80", "127.0.0.1.example.com", "localhost.example.com:80", "[::2]:1"]
        {
            assert_eq!(refusal(&routed(&Method::GET, state, &[("host", host)])), Some(403), "{host}");
        }
        assert_eq!(refusal(&routed(&Method::GET, state, &[])), Some(403), "no Host");
        for (site, code) in [("same-origin", None), ("none", None), ("cross-site", Some(403)), ("same-site", Some(403))]
        {
            let headers = [("host", "localhost:4000"), ("sec-fetch-site", site)];
            assert_eq!(refusal(&routed(&Method::GET, state, &headers)), code, "{site}");
        }
    }

    /// A node may have no way to the internet, and its page must not tell others about it.
    #[test]
    fn the_page_is_small_and_needs_nothing_else() {
        let size: usize = ASSETS.iter().map(|asset| asset.text.len()).sum();
        assert!(size <= 300 << 10, "{size} bytes");
        for asset in &ASSETS {
            let own = asset.text.replace("http://www.w3.org/2000/svg", "");
            for foreign in
                ["http:", "https:", "src=\"//", "url(", "@import", "eval(", "innerHTML", " style=\"", "onclick="]
            {
                assert!(!own.contains(foreign), "{} contains {foreign}", asset.name);
            }
        }
        let html = ASSETS[0].text;
        for named in ["style.css", "app.js"] {
            assert!(html.contains(&format!("\"{named}\"")), "{named}");
        }
        assert!(html.contains("<html lang=\"en\">") && !html.contains("<script>") && !html.contains("<style>"));
    }
}
