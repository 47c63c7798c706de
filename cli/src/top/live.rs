//! The live view of `localnet top`: reads the brain, connection tracking and the keyboard, and draws.
//!
//! ```text
//!  brain ─► follow ─┐
//!  sample ──────────┤
//!  keys (thread) ───┼─► Model ─► draw ─► terminal
//!  explain ◄────────┘
//! ```

use std::{convert::Infallible, io, pin::pin, thread, time::Duration};

use anyhow::Context as _;
use jiff::Timestamp;
use localnet_client::{Snapshot, Source};
use localnet_proto::Revision;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::{
    select,
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, sleep},
};

use super::{
    draw::{Theme, draw},
    input::{Action, Key, Question},
    model::Model,
    seen::Seen,
};
use crate::history::History;

/// How long to wait if the brain does not answer.
const RETRY: Duration = Duration::from_secs(1);
/// How often the traffic is read.
const PERIOD: Duration = Duration::from_secs(1);
/// How often the thread that reads keys checks whether it is still needed.
const CHECK: Duration = Duration::from_millis(200);

/// Shows the view until the user quits or `ended` resolves. The terminal is restored in any case, even after a panic.
///
/// `sample` reads the traffic of a state, and `explain` answers a question about a packet with text.
///
/// # Errors
/// Returns an error if the terminal cannot be read or written.
pub async fn run(
    source: &impl Source,
    history: Option<History>,
    has_colour: bool,
    sample: impl AsyncFnMut(&Snapshot) -> Seen,
    explain: impl AsyncFn(Question) -> Result<String, String>,
    ended: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init().context("failed to prepare the terminal")?;
    let restore = Restore;
    let result = show(&mut terminal, source, history, Theme { has_colour }, sample, explain, ended).await;
    drop(restore);
    result
}

/// Restores the terminal when it is dropped.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

async fn show(
    terminal: &mut ratatui::DefaultTerminal,
    source: &impl Source,
    history: Option<History>,
    theme: Theme,
    sample: impl AsyncFnMut(&Snapshot) -> Seen,
    explain: impl AsyncFn(Question) -> Result<String, String>,
    ended: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let (followed, mut states) = watch::channel(Followed::default());
    let (sampled, mut seen) = watch::channel(Seen::default());
    let (asked, questions) = watch::channel(None);
    let (answered, mut answers) = mpsc::unbounded_channel();
    let (pressed, mut keys) = mpsc::unbounded_channel();
    thread::Builder::new().name("keys".to_owned()).spawn(move || read_keys(&pressed))?;
    let mut following = pin!(follow(source, &followed));
    let mut sampling = pin!(repeat(sample, followed.subscribe(), &sampled));
    let mut explaining = pin!(answer(explain, questions, &answered));
    let mut ended = pin!(ended);
    let mut model = Model::default();
    if let Some(history) = &history {
        model.set_history(history);
    }
    loop {
        model.now = Timestamp::now();
        terminal.draw(|frame| draw(frame, &model, theme)).context("failed to write to the terminal")?;
        select! {
            never = &mut following => match never {},
            never = &mut sampling => match never {},
            never = &mut explaining => match never {},
            () = &mut ended => return Ok(()),
            Ok(()) = states.changed() => {
                let Followed { state, problem } = states.borrow_and_update().clone();
                model.now = Timestamp::now();
                model.problem = problem;
                if state.revision != model.state.revision {
                    model.set_state(state);
                }
            }
            Ok(()) = seen.changed() => model.set_seen(seen.borrow_and_update().clone()),
            Some((question, answer)) = answers.recv() => model.explained(question, answer),
            input = keys.recv() => {
                // Without a key, the size has changed.
                if let Some(key) = input.context("the thread that reads keys has crashed")?? {
                    match model.press(key) {
                        Action::Draw => {}
                        Action::Quit => return Ok(()),
                        Action::Explain(question) => _ = asked.send_replace(Some(question)),
                    }
                }
            }
        }
    }
}

/// The newest state, and why it may be old.
#[derive(Clone, Debug, Default)]
pub struct Followed {
    /// The state.
    pub state: Snapshot,
    /// Why the source does not answer.
    pub problem: Option<String>,
}

/// Reads every state. If the source does not answer, says so, and retries.
pub async fn follow(source: &impl Source, states: &watch::Sender<Followed>) -> Infallible {
    loop {
        let have = states.borrow().state.revision;
        match source.next(have, have != Revision::default()).await {
            Ok(update) => states.send_modify(|followed| {
                followed.state.apply(update);
                followed.problem = None;
            }),
            Err(error) => {
                let problem = format!("{}: {error}; retrying", source.describe());
                states.send_modify(|followed| followed.problem = Some(problem));
                sleep(RETRY).await;
            }
        }
    }
}

async fn repeat(
    mut sample: impl AsyncFnMut(&Snapshot) -> Seen,
    states: watch::Receiver<Followed>,
    sampled: &watch::Sender<Seen>,
) -> Infallible {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let state = states.borrow().state.clone();
        sampled.send_replace(sample(&state).await);
    }
}

/// Answers the newest question. Questions that were replaced in the meantime get no answer.
async fn answer(
    explain: impl AsyncFn(Question) -> Result<String, String>,
    mut questions: watch::Receiver<Option<Question>>,
    answers: &mpsc::UnboundedSender<(Question, Result<String, String>)>,
) -> Infallible {
    loop {
        // The sender lives as long as this future.
        _ = questions.changed().await;
        let question = *questions.borrow_and_update();
        if let Some(question) = question {
            // The receiver lives as long as this future.
            _ = answers.send((question, explain(question).await));
        }
    }
}

/// Reads keys until the receiver is gone. `None` means that the terminal's size has changed.
fn read_keys(pressed: &mpsc::UnboundedSender<io::Result<Option<Key>>>) {
    while !pressed.is_closed() {
        let input = match event::poll(CHECK) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        let known = match input {
            Ok(Event::Key(press)) => match key(&press) {
                Some(key) => Ok(Some(key)),
                None => continue,
            },
            Ok(Event::Resize(..)) => Ok(None),
            Ok(_) => continue,
            Err(error) => Err(error),
        };
        let is_end = known.is_err();
        if pressed.send(known).is_err() || is_end {
            return;
        }
    }
}

fn key(press: &KeyEvent) -> Option<Key> {
    if press.kind == KeyEventKind::Release {
        return None;
    }
    if press.modifiers.contains(KeyModifiers::CONTROL) {
        return (press.code == KeyCode::Char('c')).then_some(Key::Interrupt);
    }
    Some(match press.code {
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Char(letter) => Key::Char(letter),
        _ => return None,
    })
}
