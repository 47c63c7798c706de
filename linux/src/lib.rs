//! What more than one Linux backend needs: nf_tables netlink, addresses.
