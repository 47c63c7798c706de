#Requires -RunAsAdministrator
<#
.SYNOPSIS
Tests localnet-win on a Windows node: that HNS accepts its objects, and that packets arrive.

.DESCRIPTION
Before you run the script: drain the node, stop kube-proxy, and start a brain for this node. The network of the CNI plugin must exist.
The script stops at the first error. If you report a problem, attach its output and its folder.

.EXAMPLE
.\windows.ps1 -NetworkName cbr0 -Api tcp://10.0.0.5:12090 -TlsArguments '--tls-ca','ca.pem','--tls-cert','node.pem','--tls-key','node.key' -ClusterIP 10.96.0.10 -Port 53
#>
param(
    # The HNS network of the pods.
    [Parameter(Mandatory)] [string] $NetworkName,
    # Path of localnet-win.exe.
    [string] $Program = (Join-Path $PSScriptRoot 'localnet-win.exe'),
    # Address of this node's brain.
    [string] $Api = 'tcp://127.0.0.1:12090',
    # The flags --tls-ca, --tls-cert and --tls-key, if the brain requires TLS.
    [string[]] $TlsArguments = @(),
    # The source VIP. Required on an overlay network.
    [string] $SourceVip,
    # A ClusterIP that answers TCP, and its port.
    [string] $ClusterIP,
    [int] $Port = 80,
    # Folder for the logs and listings.
    [string] $Folder = (Join-Path $env:TEMP "localnet-$(Get-Date -Format yyyyMMdd-HHmmss)"),
    # Whether to remove localnet's objects from HNS at the end.
    [switch] $Cleanup
)
$ErrorActionPreference = 'Stop'
New-Item -ItemType Directory -Force $Folder | Out-Null
$network = @('--network-name', $NetworkName)
if ($SourceVip) { $network += @('--source-vip', $SourceVip) }
$brain = @('--once', '--api', $Api) + $TlsArguments + $network

function Step([string] $Title, [scriptblock] $Work) {
    Write-Host "== $Title"
    & $Work
}

# Runs localnet-win and writes its output and log to files. Returns both.
function Invoke-Localnet([string] $Name, [string[]] $Arguments) {
    $log = Join-Path $Folder "$Name.log"
    $out = Join-Path $Folder "$Name.out"
    $env:RUST_LOG = 'info,localnet_win=debug'
    $process = Start-Process $Program -ArgumentList $Arguments -NoNewWindow -Wait -PassThru -RedirectStandardError $log -RedirectStandardOutput $out
    if ($process.ExitCode -ne 0) {
        Get-Content $log | Write-Host
        throw "$Name failed with exit code $($process.ExitCode): see $log"
    }
    Get-Content $out, $log
}

Step 'System' {
    Get-ComputerInfo -Property OsName, OsVersion, OsBuildNumber | Format-List | Out-String | Write-Host
    hnsdiag list networks | Tee-Object (Join-Path $Folder 'networks.txt') | Write-Host
}
Step 'Test HNS with addresses reserved for documentation' {
    Invoke-Localnet 'check' (@('check') + $network) | Write-Host
}
Step 'Plan' {
    Invoke-Localnet 'plan' ($brain + '--dry-run') | Out-Null
    $plan = Get-Content (Join-Path $Folder 'plan.out') -Raw | ConvertFrom-Json
    Write-Host "$($plan.LoadBalancers.Count) load balancers, $($plan.Endpoints.Count) endpoints, $($plan.Skipped.Count) diagnostics"
    $plan.Skipped | Write-Host
}
Step 'HNS accepts the plan' {
    Invoke-Localnet 'first' $brain | Where-Object { $_ -match 'applied|HNS' } | Write-Host
    hnsdiag list loadbalancers -d | Set-Content (Join-Path $Folder 'loadbalancers.txt')
    hnsdiag list endpoints -d | Set-Content (Join-Path $Folder 'endpoints.txt')
    Invoke-Localnet 'hns' (@('inspect') + $network) | Out-Null
}
Step 'A second process finds the plan in HNS, and writes nothing' {
    $written = Invoke-Localnet 'second' $brain | Where-Object { $_ -match 'HNS written' }
    Write-Host $written
    if ($written -notmatch 'calls=0\b') { throw "HNS does not list the objects as written: attach $Folder to your report" }
}
if ($ClusterIP) {
    Step "Packets: $ClusterIP`:$Port answers this node 20 times" {
        1..20 | ForEach-Object {
            $client = [System.Net.Sockets.TcpClient]::new()
            try {
                if (-not $client.ConnectAsync($ClusterIP, $Port).Wait(2000)) { throw "connection $_ of 20 got no answer" }
            } finally { $client.Dispose() }
        }
        Write-Host 'Now test in the same way from a pod of this node, and from outside to a NodePort.'
    }
}
if ($Cleanup) {
    Step 'Cleanup' { Invoke-Localnet 'cleanup' (@('cleanup') + $network) | Write-Host }
}
Write-Host "All steps succeeded. Logs and listings: $Folder"
