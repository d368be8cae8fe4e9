-- Run once by the PostgreSQL image on an empty data folder: one database for each service.
create database orders;
create database points;
create database notifications;
create database console;
