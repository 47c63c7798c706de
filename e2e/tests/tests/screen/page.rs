//! The page of `localnet ui` in a browser, used with the keyboard alone.

use std::{path::Path, process::Command};

use localnet_e2e::await_condition;

use crate::{browser::Browser, node::Node};

/// kube-proxy's rules for the Service, with only one of its endpoints.
const KUBE_PROXY: &str = "*nat
:KUBE-SERVICES - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-WEB - [0:0]
:KUBE-SEP-WEB - [0:0]
-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING
-A KUBE-SERVICES -d 172.30.0.10/32 -p tcp -m comment --comment \"default/web:http cluster IP\" -m tcp --dport 80 -j KUBE-SVC-WEB
-A KUBE-SVC-WEB -m comment --comment \"default/web:http -> 10.180.0.1:8080\" -j KUBE-SEP-WEB
-A KUBE-SEP-WEB -p tcp -m comment --comment \"default/web:http\" -m tcp -j DNAT --to-destination 10.180.0.1:8080
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
COMMIT
";

/// Presses Tab until the element that matches a selector has the focus.
fn tab_to(browser: &mut Browser, selector: &str) {
    for _ in 0..40 {
        browser.press("Tab").unwrap();
        if browser.value(&format!("document.activeElement.matches({selector:?})")).unwrap() == true {
            return;
        }
    }
    panic!("the key Tab does not reach {selector}");
}

/// Checks that a screen reader can name everything that can be used, and each picture and table.
fn assert_named(browser: &mut Browser, view: &str) {
    let all = browser.accessible().unwrap();
    let needs =
        ["button", "link", "textbox", "searchbox", "combobox", "table", "image", "img", "region", "form", "navigation"];
    for (role, name) in all.iter().filter(|(role, _)| needs.contains(&role.as_str())) {
        assert!(!name.is_empty() || role == "form", "{view}: a {role} without a name: {all:?}");
    }
    assert!(all.iter().any(|(role, name)| role == "heading" && !name.is_empty()), "{view}: no heading: {all:?}");
}

/// So few connections at a time that the client's ports last. The server closes first, so the kernel gives a connection from a port that was
/// used within the last two minutes to the same endpoint.
const FEW: usize = 2;

#[test]
fn the_page_shows_services_paths_history_and_differences() {
    let node = Node::build().unwrap();
    let _ui = node.programs.start(node.network.node(), "localnet", &["ui", "--api", &node.programs.api()]).unwrap();
    let address = || node.programs.log("localnet").lines().find(|line| line.starts_with("http://")).map(str::to_owned);
    await_condition("the address of the page", || address().is_some()).unwrap();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("docs/ui");
    let mut browser = Browser::start(node.network.node()).unwrap();
    browser.open(&address().unwrap()).unwrap();

    // Services with their rates.
    let cell = "document.querySelector('tr[data-key=\"default/web\"] td:nth-child(2)')";
    let rate = format!("document.body?.innerText.includes('rates counted') && parseFloat({cell}?.textContent) > 0");
    // Until the backend has loaded the rules, connections fail.
    browser.await_true(&rate, || drop(node.connect(FEW))).unwrap();
    assert_eq!(browser.value("document.querySelectorAll('#services-table tbody tr').length").unwrap(), 3);
    let refused =
        "parseFloat(document.querySelector('tr[data-key=\"default/nothing\"] td:nth-child(7)')?.textContent) > 0";
    browser.await_true(refused, || node.connect(FEW).unwrap()).unwrap();
    node.set_weights("a=6,b=3,c=1").unwrap();
    let news = "document.getElementById('news').textContent.includes('default/web: weights: 10.180.0.1 1 -> 6')";
    browser.await_true(news, || node.connect(FEW).unwrap()).unwrap();
    assert_named(&mut browser, "services");
    browser.document(&docs.join("services.png")).unwrap();

    // One Service, and a packet to it, with the keyboard alone.
    browser.value("document.activeElement.blur()").unwrap();
    tab_to(&mut browser, "a[href='#service=default/web']");
    browser.press("Enter").unwrap();
    let shares = "document.querySelector('#endpoints-table tbody')?.innerText.includes('60 %')";
    browser.await_true(shares, || node.connect(FEW).unwrap()).unwrap();
    // The connections follow the edited weight: 60 % instead of a third.
    let measured = "(share => share > 50 && share < 70)(parseFloat(document.querySelector(\
                    '#endpoints-table tr[data-key^=\"10.180.0.1:8080\"] td:nth-child(3)')?.textContent))";
    browser.await_true(measured, || node.connect(10).unwrap()).unwrap();
    assert_eq!(
        browser.value("document.activeElement.id").unwrap(),
        "main",
        "a screen reader continues in the new view"
    );
    assert_named(&mut browser, "service");
    browser.document(&docs.join("service.png")).unwrap();
    tab_to(&mut browser, "#service-paths a");
    browser.press("Enter").unwrap();
    let picture = "document.querySelector('#path-answer svg desc')?.textContent";
    browser.await_true(&format!("{picture}?.includes('10.180.0.1:8080 with 60 %')"), || {}).unwrap();
    let rules = browser.value("document.querySelector('#path-answer tbody').innerText").unwrap();
    assert!(rules.as_str().unwrap().contains("✓ held") && !rules.as_str().unwrap().contains('✗'), "{rules}");
    assert_named(&mut browser, "path");
    browser.document(&docs.join("path.png")).unwrap();
    for (field, text) in [("#from", "outside"), ("#to", "default/nothing:http")] {
        tab_to(&mut browser, field);
        browser.value("document.activeElement.select()").unwrap();
        browser.write(text).unwrap();
    }
    browser.press("Enter").unwrap();
    browser.await_true(&format!("{picture}?.includes('rejected: connection refused')"), || {}).unwrap();
    let rules = browser.value("document.querySelector('#path-answer tbody').innerText").unwrap();
    let rules = rules.as_str().unwrap();
    assert!(rules.contains("update @refused-no-endpoints") && !rules.contains('✗'), "the counting rules: {rules}");

    // The history.
    tab_to(&mut browser, "a[href='#history']");
    browser.press("Enter").unwrap();
    let dots = "document.querySelectorAll('#time-line circle').length > 1 && \
                document.querySelector('#history-table tbody').innerText.match(/nft [0-9]+ ms/) !== null";
    browser.await_true(dots, || {}).unwrap();
    assert_named(&mut browser, "history");
    browser.document(&docs.join("history.png")).unwrap();

    // The differences from kube-proxy's rules.
    let mut restore = Command::new("iptables-restore");
    node.network.node().output_with_input(restore.arg("--noflush"), KUBE_PROXY).unwrap();
    tab_to(&mut browser, "a[href='#shadow']");
    browser.press("Enter").unwrap();
    tab_to(&mut browser, "#compare");
    browser.press("Enter").unwrap();
    let differs = "document.getElementById('shadow-answer').innerText.includes('mode iptables') && \
                   document.querySelector('#shadow-answer tbody')?.innerText.includes('default/web')";
    browser.await_true(differs, || {}).unwrap();
    assert_named(&mut browser, "shadow");
    browser.resize(1280, 600).unwrap();
    browser.document(&docs.join("shadow.png")).unwrap();

    // On a narrow window, nothing but tables and pictures scrolls sideways.
    browser.resize(400, 800).unwrap();
    let fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";
    browser.await_true(fits, || {}).unwrap();
    assert_eq!(browser.errors, Vec::<String>::new());
}
