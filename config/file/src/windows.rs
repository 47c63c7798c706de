//! How a program ends on Windows: by the events of its console, or by the service control manager, which runs it as a
//! Windows service.

use std::{
    ffi::OsString,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use tokio::{signal::windows, sync::Notify};
use tracing::error;
use windows_service::{
    define_windows_service,
    service::{ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType},
    service_control_handler::{self, ServiceControlHandlerResult, ServiceStatusHandle},
    service_dispatcher,
};

/// Resolves when the program should end: on Ctrl-C or Ctrl-Break, when its console is closed, and when Windows shuts
/// down.
pub async fn terminated() {
    // Without a handler, the event ends the process anyway.
    macro_rules! wait {
        ($what:path) => {
            async {
                match $what() {
                    Ok(mut signals) => _ = signals.recv().await,
                    Err(_) => std::future::pending().await,
                }
            }
        };
    }
    tokio::select! {
        () = wait!(windows::ctrl_c) => {}
        () = wait!(windows::ctrl_break) => {}
        () = wait!(windows::ctrl_close) => {}
        () = wait!(windows::ctrl_shutdown) => {}
    }
}

/// Resolves when the service control manager stops the service.
pub type Stopped = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A service: its name, and the program that it runs until it is stopped.
struct Service {
    name: &'static str,
    run: Box<dyn FnOnce(Stopped) -> anyhow::Result<()> + Send>,
}

/// The service of this process. Windows calls a function that gets nothing from the caller of [`run_service`].
static SERVICE: Mutex<Option<Service>> = Mutex::new(None);

define_windows_service!(begin, serve);

/// Runs a program as a Windows service until the service is stopped. The service has a process of its own, so Windows
/// accepts any name.
///
/// # Errors
/// Returns an error if the service control manager did not start this process.
pub fn run_service(
    name: &'static str,
    run: impl FnOnce(Stopped) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    *SERVICE.lock().unwrap_or_else(PoisonError::into_inner) = Some(Service { name, run: Box::new(run) });
    service_dispatcher::start(name, begin)
        .context("failed to run as a Windows service: start it with the service control manager (sc.exe create)")
}

/// Runs the service. Its arguments come from the command line of the process, not from the service control manager.
fn serve(_arguments: Vec<OsString>) {
    let Some(Service { name, run }) = SERVICE.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let ended = Arc::new(Notify::new());
    let notify = Arc::clone(&ended);
    let handler = move |control| match control {
        ServiceControl::Stop | ServiceControl::Shutdown => {
            notify.notify_one();
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    };
    // Without a handler, no status can be reported.
    let Ok(status) = service_control_handler::register(name, handler) else { return };
    report_state(status, ServiceState::Running, ServiceExitCode::NO_ERROR);
    let stopped = async move {
        ended.notified().await;
        report_state(status, ServiceState::StopPending, ServiceExitCode::NO_ERROR);
    };
    let code = match run(Box::pin(stopped)) {
        Ok(()) => ServiceExitCode::NO_ERROR,
        Err(error) => {
            error!("{error:#}");
            ServiceExitCode::ServiceSpecific(1)
        }
    };
    report_state(status, ServiceState::Stopped, code);
}

/// How long the program may take to end after the service control manager stops the service.
const STOPPING: Duration = Duration::from_secs(30);

fn report_state(status: ServiceStatusHandle, state: ServiceState, exit_code: ServiceExitCode) {
    let running = state == ServiceState::Running;
    let accepted = ServiceControlAccept::STOP | ServiceControlAccept::SHUTDOWN;
    let reported = status.set_service_status(ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state: state,
        controls_accepted: if running { accepted } else { ServiceControlAccept::empty() },
        exit_code,
        checkpoint: 0,
        wait_hint: if state == ServiceState::StopPending { STOPPING } else { Duration::ZERO },
        process_id: None,
    });
    if let Err(error) = reported {
        error!(%error, "cannot report the state to the service control manager");
    }
}
