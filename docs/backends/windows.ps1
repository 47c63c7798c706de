#Requires -RunAsAdministrator
<#
.SYNOPSIS
Shows on a Windows node what no Linux machine can: that HNS takes what localnet-win writes, and that packets arrive.

.DESCRIPTION
Run it on a node from which Pods can be taken for a while, with the CNI plugin's network there and kube-proxy stopped. It needs a brain for this node.
It stops at the first thing that is wrong. What it prints and leaves in the folder is what to send along with a report.

.EXAMPLE
.\windows.ps1 -NetworkName cbr0 -Api tcp://10.0.0.5:12090 -TlsArguments '--tls-ca','ca.pem','--tls-cert','node.pem','--tls-key','node.key' -ClusterIP 10.96.0.10 -Port 53
#>
param(
    # The HNS network of the pods.
    [Parameter(Mandatory)] [string] $NetworkName,
    # The program.
    [string] $Program = (Join-Path $PSScriptRoot 'localnet-win.exe'),
    # Where this node's brain is served.
    [string] $Api = 'tcp://127.0.0.1:12090',
    # --tls-ca and the like, where the brain asks for them.
    [string[]] $TlsArguments = @(),
    # The source VIP, on an overlay network.
    [string] $SourceVip,
    # A ClusterIP that answers TCP, and its port.
    [string] $ClusterIP,
    [int] $Port = 80,
    # Where evidence is left.
    [string] $Folder = (Join-Path $env:TEMP "localnet-$(Get-Date -Format yyyyMMdd-HHmmss)"),
    # Remove at the end what was programmed.
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

# Runs the program; its log goes to a file, and is returned.
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

Step 'This system' {
    Get-ComputerInfo -Property OsName, OsVersion, OsBuildNumber | Format-List | Out-String | Write-Host
    hnsdiag list networks | Tee-Object (Join-Path $Folder 'networks.txt') | Write-Host
}
Step 'HNS does what is expected of it (the contract suite, on documentation addresses)' {
    Invoke-Localnet 'check' (@('check') + $network) | Write-Host
}
Step 'The plan' {
    Invoke-Localnet 'plan' ($brain + '--dry-run') | Out-Null
    $plan = Get-Content (Join-Path $Folder 'plan.out') -Raw | ConvertFrom-Json
    Write-Host "$($plan.LoadBalancers.Count) load balancers, $($plan.Endpoints.Count) endpoints, $($plan.Skipped.Count) notes"
    $plan.Skipped | Write-Host
}
Step 'HNS takes it' {
    Invoke-Localnet 'first' $brain | Where-Object { $_ -match 'applied|HNS' } | Write-Host
    hnsdiag list loadbalancers -d | Set-Content (Join-Path $Folder 'loadbalancers.txt')
    hnsdiag list endpoints -d | Set-Content (Join-Path $Folder 'endpoints.txt')
}
Step 'A second process finds it as it should be, and writes nothing' {
    $written = Invoke-Localnet 'second' $brain | Where-Object { $_ -match 'HNS written' }
    Write-Host $written
    if ($written -notmatch 'calls=0\b') { throw 'HNS does not show what was written to it: send the folder along' }
}
if ($ClusterIP) {
    Step "Packets: $ClusterIP`:$Port answers this node 20 times" {
        1..20 | ForEach-Object {
            $client = [System.Net.Sockets.TcpClient]::new()
            try {
                if (-not $client.ConnectAsync($ClusterIP, $Port).Wait(2000)) { throw "connection $_ of 20 is not answered" }
            } finally { $client.Dispose() }
        }
        Write-Host 'From a pod of this node, and from outside to a NodePort, ask the same way: only you know where those are.'
    }
}
if ($Cleanup) {
    Step 'Cleanup' { Invoke-Localnet 'cleanup' (@('cleanup') + $network) | Write-Host }
}
Write-Host "All of it is as it should be. What was seen is in $Folder"
