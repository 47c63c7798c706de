//! Runs the program as a Windows service: the service control manager starts and stops the process.

use std::{ffi::OsString, sync::Arc, time::Duration};

use anyhow::Context as _;
use clap::Parser as _;
use tokio::sync::Notify;
use tracing::error;
use windows_service::{
    define_windows_service,
    service::{ServiceControl, ServiceControlAccept, ServiceExitCode, ServiceState, ServiceStatus, ServiceType},
    service_control_handler::{self, ServiceControlHandlerResult, ServiceStatusHandle},
    service_dispatcher,
};

use super::{Arguments, block_on};

/// The name of the service. It has a process of its own, so Windows accepts any name.
const NAME: &str = "localnet-win";

define_windows_service!(begin, serve);

/// Runs until the service is stopped.
///
/// # Errors
/// Returns an error if this process was not started as a service.
pub(super) fn run() -> anyhow::Result<()> {
    service_dispatcher::start(NAME, begin)
        .context("failed to run as a Windows service: start it with the service control manager (sc.exe create)")
}

/// Runs the service. Its arguments come from the command line of the process, not from the service control manager.
fn serve(_arguments: Vec<OsString>) {
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
    let Ok(status) = service_control_handler::register(NAME, handler) else { return };
    report_state(status, ServiceState::Running, ServiceExitCode::NO_ERROR);
    let ending = async move {
        ended.notified().await;
        report_state(status, ServiceState::StopPending, ServiceExitCode::NO_ERROR);
    };
    let code = match block_on(Arguments::parse_from(localnet_config::flags::spelled(std::env::args_os())), ending) {
        Ok(()) => ServiceExitCode::NO_ERROR,
        Err(error) => {
            error!("{error:#}");
            ServiceExitCode::ServiceSpecific(1)
        }
    };
    report_state(status, ServiceState::Stopped, code);
}

/// How long a pending call to HNS may take after the service control manager stops the service.
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
